import { createReadStream } from "node:fs";
import { chmod, mkdir, stat } from "node:fs/promises";
import path from "node:path";
import type { Logger } from "../platform/logger.ts";
import {
  BadRequest,
  Conflict,
  DomainError,
  NotFound,
  ProviderError,
  StorageFull,
  Unavailable,
} from "../ports/errors.ts";
import {
  type ImageConfig,
  type ImageStore,
  refuseRegistry,
  registryOf,
  type StoredImage,
} from "../ports/image-store.ts";
import type { CallOptions } from "../ports/sandbox-operations.ts";
import { refuseInnerRegistry } from "../pulls/inner-registry.ts";
import { type PullLimits, PullTookTooLong } from "../pulls/pull-turns.ts";
import { SharedPulls } from "../pulls/shared-pulls.ts";
import { savedByEngine } from "./engine.ts";
import { findArchivedImage } from "./image-archive.ts";
import type { ImageDisk } from "./image-disk.ts";
import { hostImage, normaliseImageName } from "./image-name.ts";
import { runProgram } from "./programs.ts";
import { canPull, downloadImage } from "./skopeo.ts";
import { tarOfDirectory } from "./tar-directory.ts";
import { treeSize } from "./tree-size.ts";
import type { UnpackLimits } from "./unpack-budget.ts";
import { unpackApart } from "./unpacker.ts";

/** How far an import or pull is. */
export interface ImageProgress {
  step: "download" | "read" | "unpack" | "store";
  message: string;
  /** Bytes of this step so far, where they are counted. */
  bytes?: number;
}

export interface ImageLimits extends UnpackLimits {
  /** Bytes of all images together; 0: any number. */
  maxStoredBytes: number;
}

export interface ImageWork extends CallOptions {
  onProgress?: (progress: ImageProgress) => void;
}

const progressEvery = 16 * 1_048_576;

/** Nobody here gets an image that is not stored. */
class NotPulled extends NotFound {
  constructor(name: string) {
    super(`image "${name}" is not stored; get it with: alcove image pull ${name}`, { what: "image" });
  }
}

/** Root file systems on this machine's disk, for the providers without an engine. */
export class ImageLibrary implements ImageStore {
  readonly #disk: ImageDisk;
  readonly #aliases: Readonly<Record<string, string>>;
  readonly #pullPolicy: "missing" | "never";
  readonly #allowedRegistries: readonly string[];
  readonly #limits: ImageLimits;
  readonly #dockerSocket: string;
  readonly #logger: Logger;
  readonly #pulls: SharedPulls<StoredImage>;

  constructor(options: {
    disk: ImageDisk;
    aliases: Readonly<Record<string, string>>;
    pullPolicy: "missing" | "never";
    /** Registries images are pulled from; `*`: any. */
    allowedRegistries: readonly string[];
    limits: ImageLimits;
    pulls: PullLimits;
    dockerSocket: string;
    logger: Logger;
  }) {
    this.#disk = options.disk;
    this.#aliases = options.aliases;
    this.#pullPolicy = options.pullPolicy;
    this.#allowedRegistries = options.allowedRegistries;
    this.#limits = options.limits;
    this.#pulls = new SharedPulls(options.pulls);
    this.#dockerSocket = options.dockerSocket;
    this.#logger = options.logger;
  }

  /** The name after aliases, spelled as Docker does, or `host` for the machine's own root. */
  resolveName(name: string): string {
    if (name === hostImage) return hostImage;
    const normal = normaliseImageName(name);
    // A client's name may be one that every object has, such as "constructor".
    const known = [name, normal, "*"].find((one) => Object.hasOwn(this.#aliases, one));
    const alias = known === undefined ? undefined : this.#aliases[known];
    if (alias === undefined) return normal;
    return alias === hostImage ? hostImage : normaliseImageName(alias);
  }

  /** An alias to `host` gives a record of that name, whose rootfs does not exist. */
  async resolve(name: string, options: CallOptions & { owner?: string | undefined }): Promise<StoredImage> {
    options.signal.throwIfAborted();
    const wanted = this.resolveName(name);
    if (wanted === hostImage) return this.#disk.hostRecord();
    const stored = (await this.#disk.images()).get(wanted);
    if (stored !== undefined) {
      await this.#disk.used(wanted);
      return stored;
    }
    if (this.#pullPolicy === "never") throw new NotPulled(wanted);
    // Who asks here is a client: the operator's credentials go to registries that the configuration names.
    const withCredentials = this.#allowedRegistries.includes(registryOf(wanted));
    try {
      return await this.#pull(wanted, {
        ...options,
        withCredentials,
        // In its turn: a client may name any number of images at once, each a process and a question to name servers, which may
        // be slow on purpose.
        before: async (signal) => {
          if (!(await canPull({ signal }))) throw new NotPulled(wanted);
          await refuseInnerRegistry(wanted, this.#allowedRegistries);
        },
      });
    } catch (error) {
      if (error instanceof PullTookTooLong || error instanceof NotPulled) throw error;
      if (error instanceof NotFound || error instanceof Unavailable || error instanceof ProviderError) {
        // One text for all: what the registry's host answered, and whether there is one, is not the client's to know.
        this.#logger.warn(
          { event: "image.pull_failed", outcome: "failed", image: wanted, err: error },
          "an image could not be pulled",
        );
        throw new NotFound(
          `image "${wanted}" is not stored and could not be pulled; the service's log says why. Try: alcove image pull ${wanted}, or: alcove image import SOURCE ${wanted}`,
          { what: "image", cause: error },
        );
      }
      throw error;
    }
  }

  /** By name. */
  async list(options: CallOptions): Promise<StoredImage[]> {
    options.signal.throwIfAborted();
    return [...(await this.#disk.images()).values()].sort((one, other) => (one.name < other.name ? -1 : 1));
  }

  /** When an image was stored or wanted last, to the minute. */
  async lastUsed(image: StoredImage): Promise<Date> {
    return (await this.#disk.lastUsed(image.name)) ?? image.createdAt;
  }

  /**
   * Removes the images that no sandbox uses and that nobody wanted since `before`, but for those of `keep`, or only tells them.
   * @param options.keep names as the configuration has them.
   */
  async prune(
    options: CallOptions & { before: Date; keep: readonly string[]; dryRun: boolean },
  ): Promise<StoredImage[]> {
    const kept = new Set(options.keep.map((name) => this.resolveName(name)));
    const pruned: StoredImage[] = [];
    for (const image of await this.list(options)) {
      if (kept.has(image.name) || (await this.lastUsed(image)) >= options.before) continue;
      if ((await this.#disk.users(image.digest)).length > 0) continue;
      try {
        if (!options.dryRun) await this.remove(image.name, options);
        pruned.push(image);
      } catch (error) {
        // A sandbox was given it just now, or somebody else removed it.
        if (!(error instanceof Conflict || error instanceof NotFound)) throw error;
      }
    }
    return pruned;
  }

  /** Gets an image from its registry, also when an older one is stored. Callers who want the same wait for one pull. */
  async pull(reference: string, options: ImageWork): Promise<StoredImage> {
    return await this.#pull(normaliseImageName(reference), { ...options, withCredentials: true });
  }

  async #pull(
    name: string,
    options: ImageWork & {
      withCredentials: boolean;
      owner?: string | undefined;
      /** What has to be seen first, in the turn of the pull. */
      before?: (signal: AbortSignal) => Promise<void>;
    },
  ): Promise<StoredImage> {
    const { withCredentials, owner = "", before } = options;
    refuseRegistry(name, this.#allowedRegistries);
    const key = `${name} ${withCredentials}`;
    return await this.#pulls.run(name, { key, owner, signal: options.signal }, async (signal) => {
      await before?.(signal);
      signal.throwIfAborted();
      return await this.#pullOnce(name, { ...options, signal });
    });
  }

  async #pullOnce(name: string, options: ImageWork & { withCredentials: boolean }): Promise<StoredImage> {
    const { withCredentials, signal } = options;
    const started = Date.now();
    const report = this.#reporter(name, options.onProgress);
    await using stack = new AsyncDisposableStack();
    const folder = await this.#disk.temporary(stack);
    report({ step: "download", message: `pulling ${name}` });
    const layout = path.join(folder, "layout");
    await downloadImage(name, layout, {
      signal,
      withCredentials,
      limits: this.#limits,
      onLine: (line) => report({ step: "download", message: line }),
    });
    const image = await naming(name, () => this.#unpackArchive(layout, folder, { name, signal, report }));
    if (image === undefined) throw new ProviderError(`what skopeo made of ${name} is no OCI image`);
    const line = { image: name, digest: image.digest, duration_ms: Date.now() - started };
    this.#logger.info({ event: "image.pulled", outcome: "ok", ...line }, "an image was pulled");
    return image;
  }

  /**
   * Stores an image from a directory, a tar of a root file system, a `docker save` archive or OCI layout (as a tar or a
   * directory), or `docker:NAME` from a running engine.
   * @throws NotFound for a source that is not there; BadRequest for one that cannot be read.
   */
  async importFrom(source: string, reference: string, options: ImageWork): Promise<StoredImage> {
    const name = normaliseImageName(reference);
    if (name === `${hostImage}:latest`)
      throw new BadRequest(`"${hostImage}" names the machine's own root; choose another name`);
    const { signal } = options;
    signal.throwIfAborted();
    const started = Date.now();
    const report = this.#reporter(name, options.onProgress);
    await using stack = new AsyncDisposableStack();
    const folder = await this.#disk.temporary(stack);
    report({ step: "read", message: `reading ${source}` });
    const context = { name, signal, report };
    const image = await naming(name, () =>
      source.startsWith("docker:")
        ? this.#importTar(this.#savedByEngine(source.slice("docker:".length), signal), folder, context)
        : this.#importPath(source, folder, context),
    );
    const line = { image: name, digest: image.digest, duration_ms: Date.now() - started };
    this.#logger.info({ event: "image.imported", outcome: "ok", ...line }, "an image was imported");
    return image;
  }

  /** @throws NotFound; Conflict while a sandbox uses it: its files would vanish under the sandbox. */
  async remove(reference: string, options: CallOptions): Promise<void> {
    options.signal.throwIfAborted();
    const name = normaliseImageName(reference);
    const images = await this.#disk.images();
    const image = images.get(name);
    if (image === undefined) throw new NotFound(`image "${name}" is not stored`);
    const isLastName = ![...images.values()].some(
      (other) => other.digest === image.digest && other.name !== name,
    );
    if (isLastName) refuseUsed(image, await this.#disk.users(image.digest));
    await this.#disk.forget(name);
    if (!isLastName) return;
    try {
      // A sandbox may have been given the image in between.
      refuseUsed(image, await this.#disk.collect(image.digest));
    } catch (error) {
      await this.#disk.restore(image);
      throw error;
    }
  }

  /**
   * Imports that end at the same moment may exceed it by one of them each: the disk's own mark bounds that.
   * @throws StorageFull when the images would be more than may be stored.
   */
  async #refuseBeyondQuota(wanted: { name: string; digest: string; sizeBytes: number }): Promise<void> {
    const { maxStoredBytes } = this.#limits;
    if (maxStoredBytes === 0) return;
    const trees = new Map<string, number>();
    // What this name meant until now is given up for it.
    for (const { name, digest, sizeBytes } of (await this.#disk.images()).values())
      if (name !== wanted.name) trees.set(digest, sizeBytes);
    if (trees.has(wanted.digest)) return;
    const used = [...trees.values()].reduce((all, bytes) => all + bytes, 0);
    if (used + wanted.sizeBytes > maxStoredBytes)
      throw new StorageFull(
        `image "${wanted.name}" takes ${wanted.sizeBytes} bytes, and ${used} of the ${maxStoredBytes} bytes of images.max_stored are taken: ` +
          "remove images (alcove image prune), or raise it",
      );
  }

  #savedByEngine(name: string, signal: AbortSignal): AsyncIterable<Uint8Array> {
    return savedByEngine(name, { socket: this.#dockerSocket, signal });
  }

  async #importPath(source: string, folder: string, context: ImportContext): Promise<StoredImage> {
    const found = await stat(source).catch((error: unknown) => {
      throw new NotFound(
        `${source} cannot be read: ${error instanceof Error ? error.message : String(error)}`,
        { cause: error },
      );
    });
    if (found.isFile()) return await this.#importTar(createReadStream(source), folder, context);
    if (!found.isDirectory()) throw new BadRequest(`${source} is neither a file nor a directory`);
    const archived = await this.#unpackArchive(source, folder, context);
    return archived ?? (await this.#importTar(tarOfDirectory(source, context), folder, context));
  }

  /** A tar is a root file system unless an archived image comes out of it. */
  async #importTar(
    source: AsyncIterable<Uint8Array>,
    folder: string,
    context: ImportContext,
  ): Promise<StoredImage> {
    const tree = await newTree(folder, "read");
    const { skipped, digest = "" } = await unpackApart(
      { kind: "tar", root: tree, limits: this.#limits },
      { source, signal: context.signal, onBytes: context.report.bytes("read") },
    );
    const archived = await this.#unpackArchive(tree, folder, context);
    if (archived !== undefined) return archived;
    if (skipped > 0)
      this.#logger.info(
        { event: "image.special_files_skipped", image: context.name, skipped },
        "files of an image that are neither files, directories nor links were left out",
      );
    return await this.#store(tree, { digest, config: { env: {} } }, context);
  }

  async #unpackArchive(
    directory: string,
    folder: string,
    context: ImportContext,
  ): Promise<StoredImage | undefined> {
    const found = await findArchivedImage(directory, { name: context.name });
    if (found === undefined) return undefined;
    context.report({ step: "unpack", message: `unpacking ${found.layers.length} layers` });
    const tree = await newTree(folder, "image");
    await unpackApart(
      { kind: "layers", layers: found.layers, root: tree, limits: this.#limits },
      { signal: context.signal, onBytes: context.report.bytes("unpack") },
    );
    return await this.#store(tree, found, context);
  }

  async #store(
    tree: string,
    image: { digest: string; config: ImageConfig },
    context: ImportContext,
  ): Promise<StoredImage> {
    context.report({ step: "store", message: `storing ${context.name}` });
    const sizeBytes = await treeSize(tree, context);
    await this.#refuseBeyondQuota({ digest: image.digest, name: context.name, sizeBytes });
    // Data first, then the name: after a power failure a stored image is whole.
    const synced = await runProgram("sync", ["-f", tree], context);
    if (synced.exitCode !== 0)
      throw new ProviderError(`the image could not be written to disk: ${synced.stderr}`);
    return await this.#disk.store(tree, { name: context.name, ...image, sizeBytes, now: new Date() });
  }

  #reporter(name: string, onProgress: ImageWork["onProgress"]): Reporter {
    const report = (progress: ImageProgress) => {
      this.#logger.debug({ event: "image.progress", image: name, ...progress });
      onProgress?.(progress);
    };
    const bytes = (step: ImageProgress["step"]) => {
      let total = 0;
      let told = 0;
      return (more: number) => {
        total += more;
        if (total - told < progressEvery) return;
        told = total;
        report({ step, message: step === "read" ? "reading" : "unpacking", bytes: total });
      };
    };
    return Object.assign(report, { bytes });
  }
}

type Reporter = ((progress: ImageProgress) => void) & {
  bytes(step: ImageProgress["step"]): (more: number) => void;
};

interface ImportContext {
  name: string;
  signal: AbortSignal;
  report: Reporter;
}

/** `<folder>/<stage>/rootfs`: the store renames the stage as a whole. */
async function newTree(folder: string, stage: string): Promise<string> {
  const tree = path.join(folder, stage, "rootfs");
  await mkdir(tree, { recursive: true, mode: 0o755 });
  await chmod(tree, 0o755);
  return tree;
}

/** @throws Conflict when there are any. */
function refuseUsed(image: StoredImage, users: readonly string[]): void {
  if (users.length === 0) return;
  throw new Conflict(
    `image "${image.name}" is used by ${users.length} running sandboxes (${users.slice(0, 5).join(", ")}); destroy them first`,
  );
}

/** What the disk refuses is told as a failure of the import. */
async function naming<T>(name: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof DomainError || !(error instanceof Error) || !("syscall" in error)) throw error;
    throw new ProviderError(`image "${name}" could not be stored: ${error.message}`, { cause: error });
  }
}
