import { randomUUID } from "node:crypto";
import { mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { deadlineAfter } from "../../platform/deadline.ts";
import { exists } from "../../platform/missing.ts";
import { SharedWork } from "../../platform/shared-work.ts";
import { BadRequest, type CallOptions, ProviderError, type StoredImage } from "../../ports/index.ts";
import { makeTreeImage } from "../ext4/index.ts";

/** Raised when what is made here changes. */
const formatVersion = 1;
/** Ten gigabytes are written in less on a slow disk. */
const usualBuildMs = 10 * 60_000;
const draftMark = ".part";

/** Where machines find the agent in their root, and what the kernel starts. */
export const agentPath = "/.alcove/alcove-agent";

/**
 * The read-only root file systems of microVMs: each an ext4 image of a stored image with the agent in it, made at the first
 * use and shared by all machines of that image.
 *
 *     <folder>/<image digest>-<agent digest>-v<format>.ext4         whole, never written to again
 *     <folder>/<the same>.<uuid>.part                               under way; removed by open() when nobody finished it
 */
export class RootfsImages {
  readonly #folder: string;
  readonly #agent: { path: string; digest: string };
  readonly #programs: { mkfs: string; debugfs: string };
  readonly #buildMs: number;
  readonly #builds = new SharedWork<string>();

  /** @param options.agent as `storeAgent` gives it. */
  constructor(options: {
    folder: string;
    agent: { path: string; digest: string };
    programs: { mkfs: string; debugfs: string };
    buildMs?: number;
  }) {
    this.#folder = options.folder;
    this.#agent = options.agent;
    this.#programs = options.programs;
    this.#buildMs = options.buildMs ?? usualBuildMs;
  }

  /** Makes the folder, and removes what processes before this one left unfinished: the data directory has one at a time. */
  async open(): Promise<void> {
    // Images hold what their programs keep from other users.
    await mkdir(this.#folder, { recursive: true, mode: 0o700 });
    for (const name of await readdir(this.#folder))
      if (name.includes(draftMark)) await rm(join(this.#folder, name), { force: true });
  }

  /** What an image's file is called, with this agent in it: another agent or another content is another file. */
  nameOf(image: StoredImage): string {
    const content = image.digest.replace(/^sha256:/, "");
    return `${content}-${this.#agent.digest.slice(0, 16)}-v${formatVersion}.ext4`;
  }

  /**
   * The path of an image's root file system, made now if it is not there; callers who want the same wait for one build, which
   * ends when the last of them leaves.
   * @throws BadRequest for the machine's own root; StorageFull; ProviderError when it cannot be made; the signal's reason.
   */
  async get(image: StoredImage, options: CallOptions): Promise<string> {
    if (image.digest === "")
      throw new BadRequest(
        `image "${image.name}" is the machine's own root, which no microVM can have; name another`,
      );
    const name = this.nameOf(image);
    const path = join(this.#folder, name);
    if (await exists(path)) return path;
    return this.#builds.run(name, options.signal, (signal) => this.#build(image, path, signal));
  }

  /** Removes the files of images and agents that are not wanted any more, but for those that machines use. */
  async prune(options: { keep: ReadonlySet<string> }): Promise<string[]> {
    const removed: string[] = [];
    for (const name of await readdir(this.#folder)) {
      if (!name.endsWith(".ext4") || options.keep.has(name)) continue;
      await rm(join(this.#folder, name), { force: true });
      removed.push(name);
    }
    return removed;
  }

  async #build(image: StoredImage, path: string, signal: AbortSignal): Promise<string> {
    // Somebody may have finished it since this caller looked.
    if (await exists(path)) return path;
    const about = `the root file system of image "${image.name}" cannot be made`;
    using deadline = deadlineAfter(this.#buildMs, signal);
    try {
      await makeTreeImage(path, {
        tree: image.rootfs,
        added: { from: this.#agent.path, folder: ".alcove", name: "alcove-agent", mode: 0o711 },
        ...this.#programs,
        about,
        draft: `${path}.${randomUUID()}${draftMark}`,
        signal: deadline.signal,
      });
      return path;
    } catch (error) {
      signal.throwIfAborted();
      if (error === deadline.signal.reason)
        throw new ProviderError(`${about}: it took more than ${this.#buildMs / 1000} s`, { cause: error });
      throw error;
    }
  }
}
