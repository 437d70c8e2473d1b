import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { chmod, glob, mkdir, open, readdir, readFile, rename, rm, stat, utimes } from "node:fs/promises";
import path from "node:path";
import { type Static, Type } from "typebox";
import { Value } from "typebox/value";
import { ProviderError, Unavailable } from "../ports/errors.ts";
import type { StoredImage } from "../ports/image-store.ts";
import { hostImage } from "./image-name.ts";

const StoredRecord = Type.Object({
  name: Type.String(),
  digest: Type.String({ pattern: "^sha256:[0-9a-f]{64}$" }),
  sizeBytes: Type.Number(),
  createdAt: Type.String(),
  config: Type.Object({
    env: Type.Record(Type.String(), Type.String()),
    user: Type.Optional(Type.String()),
    workdir: Type.Optional(Type.String()),
  }),
});
type StoredRecord = Static<typeof StoredRecord>;

/** Directory times are as coarse as the kernel's tick; one younger than this may hide a later change. */
const settledMs = 100;
/** Uses of an image within this time are noted once. */
const usedEveryMs = 60_000;
/** How long a root file system without a name is left to whoever may be about to name it. */
const orphanMs = 10 * 60_000;

/**
 * The store's folders, shared by every process that opens them, without a lock:
 *
 *     images/names/<name>.json     one file for each name, written beside and renamed
 *     images/rootfs/<digest>/      rootfs/ (the tree) and config.json, renamed here when complete
 *     images/tmp/<pid>-<start>-…/  work under way; swept when its process is gone
 */
export class ImageDisk {
  readonly #dataDir: string;
  readonly #names: string;
  readonly #rootfs: string;
  readonly #tmp: string;
  readonly #usedMs = new Map<string, number>();
  #cached: { mtimeMs: number; images: Map<string, StoredImage> } | undefined;

  constructor(options: { dataDir: string }) {
    this.#dataDir = path.resolve(options.dataDir);
    const base = path.join(this.#dataDir, "images");
    this.#names = path.join(base, "names");
    this.#rootfs = path.join(base, "rootfs");
    this.#tmp = path.join(base, "tmp");
  }

  /** Makes the folders and removes what dead processes left. */
  async open(): Promise<void> {
    await mkdir(this.#dataDir, { recursive: true });
    await this.#makeFolders();
    for (const name of await readdir(this.#tmp)) {
      const [pid = "", start = ""] = name.split("-");
      if (startTimeOf(Number(pid)) !== start) await removeTree(path.join(this.#tmp, name));
    }
    const named = new Set([...(await this.images()).values()].map((image) => hexOf(image.digest)));
    for (const name of await readdir(this.#rootfs)) {
      const folder = path.join(this.#rootfs, name);
      const age =
        Date.now() -
        (await stat(folder).then(
          (found) => found.mtimeMs,
          () => Date.now(),
        ));
      const digest = `sha256:${name}`;
      if (!named.has(name) && age > orphanMs && (await this.users(digest)).length === 0)
        await this.#discard(digest);
    }
  }

  /** @throws Unavailable when there is no data directory to make them in. */
  async #makeFolders(): Promise<void> {
    for (const folder of [path.dirname(this.#names), this.#names, this.#rootfs, this.#tmp]) {
      await mkdir(folder).catch((cause: unknown) => {
        if (isCode(cause, "EEXIST")) return;
        if (!isCode(cause, "ENOENT")) throw cause;
        throw new Unavailable(`the data directory ${this.#dataDir} is gone: bring it back`, { cause });
      });
    }
    // Images may hold folders that anybody can write to: the machine's other users stay outside. A service that is not
    // root starts sandboxes under ids of its own, which have to pass.
    if (process.getuid?.() === 0) await chmod(path.dirname(this.#names), 0o700);
  }

  /** What `act` gives; when somebody removed the folders under the service, they are made again for a second try. */
  async #withFolders<T>(act: () => Promise<T>): Promise<T> {
    try {
      return await act();
    } catch (error) {
      if (!isCode(error, "ENOENT")) throw error;
      await this.#makeFolders();
      return await act();
    }
  }

  /** A fresh folder that goes away with the returned stack. */
  async temporary(stack: AsyncDisposableStack): Promise<string> {
    const mark = `${process.pid}-${startTimeOf(process.pid)}-${randomBytes(6).toString("hex")}`;
    const folder = path.join(this.#tmp, mark);
    await this.#withFolders(() => mkdir(folder, { mode: 0o700 }));
    stack.defer(() => removeTree(folder));
    return folder;
  }

  /** Every stored image by its name. One `stat` when nothing has changed. */
  async images(): Promise<Map<string, StoredImage>> {
    const { mtimeMs } = await this.#withFolders(() => stat(this.#names));
    if (this.#cached?.mtimeMs === mtimeMs) return this.#cached.images;
    const images = new Map<string, StoredImage>();
    for (const file of await readdir(this.#names)) {
      if (!file.endsWith(".json")) continue;
      const record = await this.#readName(path.join(this.#names, file));
      if (record !== undefined) images.set(record.name, this.#image(record));
    }
    if (Date.now() - mtimeMs > settledMs) this.#cached = { mtimeMs, images };
    return images;
  }

  /** Notes that an image was wanted now, where the file of its name has its time: no cache looks at that. */
  async used(name: string): Promise<void> {
    const now = Date.now();
    if (now - (this.#usedMs.get(name) ?? 0) < usedEveryMs) return;
    this.#usedMs.set(name, now);
    await utimes(this.#nameFile(name), new Date(), new Date()).catch((error: unknown) => {
      // Removed meanwhile, or a store that cannot be written: it is used all the same.
      this.#usedMs.delete(name);
      if (!isCode(error, "ENOENT", "EROFS", "EACCES", "EPERM", "ENOSPC")) throw error;
    });
  }

  /** When an image was stored or wanted last, to the minute; undefined for a name that is gone. */
  async lastUsed(name: string): Promise<Date | undefined> {
    try {
      return (await stat(this.#nameFile(name))).mtime;
    } catch (error) {
      if (isCode(error, "ENOENT")) return undefined;
      throw error;
    }
  }

  /** Puts a finished tree in its place and gives it its name. The same content twice is kept once. */
  async store(
    tree: string,
    image: { name: string; digest: string; sizeBytes: number; config: StoredImage["config"]; now: Date },
  ): Promise<StoredImage> {
    const record: StoredRecord = {
      name: image.name,
      digest: image.digest,
      sizeBytes: image.sizeBytes,
      createdAt: image.now.toISOString(),
      config: { ...image.config, env: { ...image.config.env } },
    };
    const before = (await this.images()).get(image.name);
    await writeSynced(path.join(path.dirname(tree), "config.json"), record);
    const final = path.join(this.#rootfs, hexOf(image.digest));
    await this.#place(path.dirname(tree), final);
    await this.#writeName(record);
    // Another process may have swept an older tree of the same content just before it had a name again.
    await this.#place(path.dirname(tree), final);
    if (before !== undefined && before.digest !== image.digest) await this.collect(before.digest);
    return this.#image(record);
  }

  /** Moves a finished tree to its place, unless the same content is there, which then counts as young. */
  async #place(made: string, final: string): Promise<void> {
    try {
      await rename(made, final);
      await chmod(final, 0o755);
      await syncFolder(this.#rootfs);
    } catch (error) {
      if (!isCode(error, "ENOTEMPTY", "EEXIST", "ENOENT")) throw error;
      await utimes(final, new Date(), new Date());
    }
  }

  /** Stands for the machine's own root, which no store holds: the path is one that never exists. */
  hostRecord(): StoredImage {
    const rootfs = path.join(this.#rootfs, hostImage);
    return { name: hostImage, digest: "", rootfs, sizeBytes: 0, createdAt: new Date(0), config: { env: {} } };
  }

  /** Takes a name away; its tree stays until `collect`. */
  async forget(name: string): Promise<void> {
    await rm(this.#nameFile(name), { force: true });
    this.#usedMs.delete(name);
    this.#cached = undefined;
  }

  async restore(image: StoredImage): Promise<void> {
    await this.#writeName({
      ...image,
      createdAt: image.createdAt.toISOString(),
      config: { ...image.config, env: { ...image.config.env } },
    });
  }

  /** Removes a tree that has no name and no sandbox any more. @returns the runtimes that keep it, as `users` tells them. */
  async collect(digest: string): Promise<string[]> {
    if (await this.#isNamed(digest)) return [];
    const users = await this.users(digest);
    return users.length > 0 ? users : this.#discard(digest);
  }

  async #isNamed(digest: string): Promise<boolean> {
    return [...(await this.images()).values()].some((image) => image.digest === digest);
  }

  /** The runtimes whose record names the digest: `<provider>/<runtime id>`. */
  async users(digest: string): Promise<string[]> {
    const users: string[] = [];
    const runtimes = path.join(this.#dataDir, "runtimes");
    for await (const file of glob("*/*/runtime.json", { cwd: runtimes })) {
      const text = await readFile(path.join(runtimes, file), "utf8").catch((error: unknown) => {
        if (isCode(error, "ENOENT")) return "";
        throw error;
      });
      if (text.includes(hexOf(digest))) users.push(path.dirname(file));
    }
    return users;
  }

  /**
   * Renamed first: a removal that is cut short leaves no half of an image behind under its name. A spawn writes its record
   * before it mounts the tree, so that one which has found it is seen now, and one that comes later finds no tree.
   * @returns the runtimes for which it was put back.
   */
  async #discard(digest: string): Promise<string[]> {
    const folder = path.join(this.#rootfs, hexOf(digest));
    await using stack = new AsyncDisposableStack();
    const aside = path.join(await this.temporary(stack), "removed");
    try {
      await rename(folder, aside);
    } catch (error) {
      if (isCode(error, "ENOENT")) return [];
      throw error;
    }
    const putBack = () =>
      rename(aside, folder).catch((error: unknown) => {
        // Whoever gave the content a name just now has put it there again.
        if (!isCode(error, "ENOTEMPTY", "EEXIST")) throw error;
      });
    try {
      const users = await this.users(digest);
      if (users.length > 0 || (await this.#isNamed(digest))) await putBack();
      return users;
    } catch (error) {
      // Nobody knows who uses it.
      await putBack();
      throw error;
    }
  }

  async #writeName(record: StoredRecord): Promise<void> {
    await using stack = new AsyncDisposableStack();
    const written = path.join(await this.temporary(stack), "name.json");
    await writeSynced(written, record);
    await rename(written, this.#nameFile(record.name));
    await syncFolder(this.#names);
    this.#cached = undefined;
  }

  async #readName(file: string): Promise<StoredRecord | undefined> {
    const text = await readFile(file, "utf8").catch((error: unknown) => {
      // Removed since the folder was read.
      if (isCode(error, "ENOENT")) return undefined;
      throw error;
    });
    if (text === undefined) return undefined;
    let record: unknown;
    try {
      record = JSON.parse(text);
    } catch (error) {
      throw new ProviderError(`${file} of the image store is damaged; remove it and get the image again`, {
        cause: error,
      });
    }
    return Value.Check(StoredRecord, record) ? record : undefined;
  }

  #image(record: StoredRecord): StoredImage {
    const rootfs = path.join(this.#rootfs, hexOf(record.digest), "rootfs");
    const { env, user, workdir } = record.config;
    const config = {
      env,
      ...(user === undefined ? {} : { user }),
      ...(workdir === undefined ? {} : { workdir }),
    };
    return { ...record, rootfs, createdAt: new Date(record.createdAt), config };
  }

  #nameFile(name: string): string {
    return path.join(this.#names, `${encodeURIComponent(name)}.json`);
  }
}

const hexOf = (digest: string) => digest.replace(/^sha256:/, "");

/** When a process started, in the kernel's ticks; undefined when there is none. Pids alone come again. */
function startTimeOf(pid: number): string | undefined {
  if (!Number.isInteger(pid) || pid <= 0) return undefined;
  try {
    const text = readFileSync(`/proc/${pid}/stat`, "utf8");
    return text.slice(text.lastIndexOf(")") + 2).split(" ")[19];
  } catch (error) {
    if (isCode(error, "ENOENT", "ESRCH")) return undefined;
    throw error;
  }
}

async function removeTree(folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true, maxRetries: 3 });
}

async function writeSynced(file: string, content: unknown): Promise<void> {
  await using handle = await open(file, "wx", 0o644);
  await handle.writeFile(`${JSON.stringify(content, undefined, 2)}\n`);
  await handle.sync();
}

async function syncFolder(folder: string): Promise<void> {
  await using handle = await open(folder, "r");
  await handle.sync();
}

function isCode(error: unknown, ...codes: string[]): boolean {
  return error instanceof Error && "code" in error && codes.includes(String(error.code));
}
