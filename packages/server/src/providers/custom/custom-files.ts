import path from "node:path";
import { Readable } from "node:stream";
import type { Static } from "typebox";
import type { Taker } from "../../platform/fair-turns.ts";
import { sortedInTurns } from "../../platform/sorted-in-turns.ts";
import { TakenBody } from "../../platform/taken-body.ts";
import {
  type AnswerRoom,
  BadRequest,
  type CallOptions,
  Conflict,
  type FileChange,
  type FileEntry,
  type FileOperations,
  type FileType,
  NotFound,
  ProviderError,
  RuntimeGone,
  SandboxDiskFull,
  TooLarge,
} from "../../ports/index.ts";
import { matchingPaths } from "../path-pattern/index.ts";
import { type BackendCalls, type CallRequest, isRefusal } from "./backend-calls.ts";
import {
  FileAnswer,
  type MakeDirectoryRequest,
  type ModeRequest,
  type MoveRequest,
} from "./contract-schemas.ts";
import { unlessSilent } from "./exec-stream.ts";

const entriesAtMost = 100_000;
const nameBytesAtMost = 32 * 1_048_576;
/** Memory that an entry takes beside its texts, as an object and in what is sent of it; texts are there twice too. */
const entryBytes = 350;
const copies = 2;
/** Bytes of what is said of one file: a path has 4 KiB at most. */
const fileAtMost = 65_536;
/** Of a time that a Date can hold, milliseconds. */
const latestMs = 8_640_000_000_000_000;
const types: ReadonlySet<string> = new Set<FileType>([
  "file",
  "dir",
  "symlink",
  "fifo",
  "socket",
  "char_device",
  "block_device",
]);

/** Files of one sandbox of the backend. */
export class CustomFiles implements FileOperations {
  readonly #calls: BackendCalls;
  readonly #path: readonly string[];
  readonly #taker: Taker;
  readonly #isAnnounced: () => boolean;
  readonly #closed: AbortSignal;
  readonly #confirm: () => Promise<boolean>;
  readonly #isHidden: () => boolean;

  constructor(options: {
    calls: BackendCalls;
    /** Of the sandbox. */
    path: readonly string[];
    taker: Taker;
    isAnnounced: () => boolean;
    closed: AbortSignal;
    confirm: () => Promise<boolean>;
    /** Whether something else answered in the backend's place when that was looked at. */
    isHidden: () => boolean;
  }) {
    this.#calls = options.calls;
    this.#path = [...options.path, "files"];
    this.#taker = options.taker;
    this.#isAnnounced = options.isAnnounced;
    this.#closed = options.closed;
    this.#confirm = options.confirm;
    this.#isHidden = options.isHidden;
  }

  async stat(target: string, options: CallOptions & { follow?: boolean }): Promise<FileEntry> {
    const request = this.#request("GET", ["stat"], target, {
      path: target,
      follow: options.follow ? "true" : undefined,
    });
    return entryOf(await this.#calls.read("look at a file", FileAnswer, request, options), target);
  }

  async list(
    target: string,
    options: CallOptions & { depth: number; room?: AnswerRoom },
  ): Promise<FileEntry[]> {
    const request = this.#request("GET", ["list"], target, { path: target, depth: String(options.depth) });
    const below = `${target.replace(/\/+$/, "")}/`;
    const entries: FileEntry[] = [];
    let [count, nameBytes, heldBytes] = [0, 0, 0];
    const each = (answer: Static<typeof FileAnswer>) => {
      count += 1;
      nameBytes += Buffer.byteLength(answer.path);
      if (count > entriesAtMost || nameBytes > nameBytesAtMost) throw tooMany(target);
      const found = pathBelow(answer.path, below);
      if (found === undefined) return;
      entries.push(entryOf(answer, found));
      heldBytes += entryBytes + copies * (answer.path.length + (answer.symlink_target?.length ?? 0));
    };
    const list = {
      ...{ field: "entries", schema: FileAnswer, thingAtMost: fileAtMost, taker: this.#taker, each },
      room: () => options.room?.(heldBytes),
    };
    await this.#calls.readEach("list a directory", list, request, options);
    return await sortedInTurns(entries, (entry) => entry.path);
  }

  async read(
    target: string,
    options: CallOptions & { offset?: number; length?: number },
  ): Promise<{ info: FileEntry; length: number | null; body: Readable }> {
    const info = await this.stat(target, { ...options, follow: true });
    if (info.type !== "file") throw new BadRequest(`"${target}" is not a regular file`);
    const offset = Math.min(options.offset ?? 0, info.size);
    const length = Math.max(0, Math.min(options.length ?? Number.POSITIVE_INFINITY, info.size - offset));
    if (length === 0) return { info, length, body: Readable.from([], { objectMode: false }) };
    const stop = new AbortController();
    const stream = AbortSignal.any([options.signal, this.#closed, stop.signal]);
    const request = this.#request("GET", [], target, {
      path: target,
      offset: String(offset),
      length: String(length),
    });
    const bounds = { ...options, stream };
    const response = await this.#calls.stream("read a file", request, bounds, async (answer) => answer);
    const { timeoutMs } = this.#calls;
    const translate = (error: unknown) => this.#calls.translate("read a file", error, stream);
    async function* exactly(): AsyncGenerator<Uint8Array> {
      let left = length;
      try {
        for await (const part of unlessSilent(response, timeoutMs)) {
          yield part.length > left ? part.subarray(0, left) : part;
          left -= Math.min(left, part.length);
          if (left === 0) return;
        }
      } catch (error) {
        throw translate(error);
      } finally {
        response.destroy();
        stop.abort();
      }
      throw new ProviderError(
        `"${target}" ended ${left} bytes early; it was changed while it was read, or the backend broke off`,
      );
    }
    const body = Readable.from(exactly(), { objectMode: false });
    // One that is let go of before it was read never gets to its end.
    body.once("close", () => response.destroy());
    return { info, length, body };
  }

  async write(
    target: string,
    body: AsyncIterable<Uint8Array>,
    options: CallOptions & { mode?: number; user?: string; maxBytes?: number },
  ): Promise<FileEntry> {
    const stop = new AbortController();
    let failure: { error: unknown } | undefined;
    let bytes = 0;
    async function* bounded(): AsyncGenerator<Uint8Array> {
      try {
        for await (const data of body) {
          bytes += data.length;
          if (options.maxBytes !== undefined && bytes > options.maxBytes)
            throw new TooLarge(`the upload to "${target}" is larger than ${options.maxBytes} bytes`);
          yield data;
        }
      } catch (error) {
        failure = { error };
        stop.abort();
        throw error;
      }
    }
    const request = this.#request("PUT", [], target, {
      path: target,
      mode: options.mode === undefined ? undefined : String(options.mode),
      user: options.user,
    });
    using taken = new TakenBody({ atMostMs: this.#calls.timeoutMs });
    const signal = AbortSignal.any([options.signal, this.#closed, stop.signal, taken.signal]);
    try {
      // As long as its caller takes to send it, unlike other calls.
      const sent = { ...request, body: taken.pass(bounded()), timeoutMs: null };
      const written = await this.#calls.read("write a file", FileAnswer, sent, { signal });
      // As backends do that take a body without Content-Length for an empty one.
      if (written.size === 0 && bytes > 0)
        throw new ProviderError(
          `the backend says that "${target}" is empty, of which it was sent ${bytes} bytes`,
        );
      return entryOf(written, target);
    } catch (error) {
      options.signal.throwIfAborted();
      throw failure === undefined || taken.signal.aborted ? error : failure.error;
    } finally {
      stop.abort();
    }
  }

  async mkdir(
    target: string,
    options: CallOptions & { mode?: number; user?: string; parents: boolean },
  ): Promise<FileEntry> {
    const { mode, user, parents } = options;
    const json: Static<typeof MakeDirectoryRequest> = {
      path: target,
      parents,
      ...(mode === undefined ? {} : { mode }),
      ...(user && { user }),
    };
    const request = { ...this.#request("POST", ["mkdir"], target, {}, user), json, isOnce: true };
    return entryOf(await this.#calls.read("make a directory", FileAnswer, request, options), target);
  }

  async move(from: string, to: string, options: CallOptions): Promise<void> {
    const json: Static<typeof MoveRequest> = { from, to };
    const request = this.#request("POST", ["move"], from);
    const known = async (error: unknown) => {
      if (isRefusal(error, 409))
        return new Conflict(`"${to}" is a directory that is not empty, or one in the way of "${from}"`);
      if (isRefusal(error, 400))
        return new BadRequest(
          `"${from}" cannot be moved to "${to}": it is of another kind, or lies above it, or a part of a path is no directory`,
        );
      return await request.known?.(error);
    };
    await this.#calls.tell("move a file", { ...request, known, json, isOnce: true }, options);
  }

  async remove(target: string, options: CallOptions & { recursive: boolean }): Promise<void> {
    if (path.posix.normalize(target).replace(/\/+$/, "") === "")
      throw new BadRequest("the root of a sandbox cannot be removed");
    const request = this.#request("DELETE", [], target, {
      path: target,
      recursive: options.recursive ? "true" : undefined,
    });
    await this.#calls.tell("remove a file", { ...request, isOnce: true }, options);
  }

  async chmod(target: string, mode: number, options: CallOptions): Promise<void> {
    const json: Static<typeof ModeRequest> = { path: target, mode };
    const request = { ...this.#request("POST", ["chmod"], target), json };
    await this.#calls.tell("change a mode", request, options);
  }

  /** Over a list: backends need not agree on what a pattern means. */
  async glob(pattern: string, options: CallOptions & { room?: AnswerRoom }): Promise<string[]> {
    // Refused before anything is asked of the backend.
    await matchingPaths([], pattern, options);
    const steps = pattern.split("/");
    const firstWild = steps.findIndex((step) => /[*?[\]{}\\]/.test(step));
    if (firstWild < 0)
      return await this.stat(pattern, options).then(
        () => [pattern],
        (error: unknown) => {
          if (error instanceof NotFound) return [];
          throw error;
        },
      );
    const base = steps.slice(0, firstWild).join("/") || "/";
    const isBounded = !pattern.includes("**") && !/\{[^}]*\//.test(pattern);
    // 0: all of it.
    const depth = isBounded ? steps.length - firstWild : 0;
    const entries = await this.list(base, { ...options, depth }).catch((error: unknown) => {
      if (error instanceof NotFound || error instanceof BadRequest) return [];
      throw error;
    });
    const paths = entries.map((entry) => entry.path);
    const found = await matchingPaths(paths, pattern, options);
    await options.room?.(found.reduce((total, each) => total + Buffer.byteLength(each), 0));
    return await sortedInTurns(found, String);
  }

  async archive(target: string): Promise<Readable> {
    throw new BadRequest(
      `provider custom packs no directories (capability "archives"); read "${target}" file by file`,
    );
  }

  async unpack(target: string): Promise<{ entries: number }> {
    throw new BadRequest(
      `provider custom unpacks nothing (capability "archives"); write into "${target}" file by file`,
    );
  }

  async watch(target: string): Promise<AsyncIterable<FileChange>> {
    throw new BadRequest(`provider custom watches no files (capability "watch"); list "${target}" again`);
  }

  /** @param target and @param user are what the refusals name. */
  #request(
    method: CallRequest["method"],
    steps: readonly string[],
    target: string,
    query: Record<string, string | undefined> = {},
    user = query.user,
  ): CallRequest {
    if (!this.#isAnnounced())
      throw new BadRequest(`the backend of provider custom has no calls for files (capability "files")`);
    this.#closed.throwIfAborted();
    const known = async (error: unknown) => {
      if (isRefusal(error, 404)) {
        if (!(await this.#confirm())) return new RuntimeGone("the sandbox has ended");
        if (this.#isHidden()) return this.#calls.hidden();
        return new NotFound(`"${target}" does not exist in this sandbox`, { what: "file" });
      }
      if (isRefusal(error, 400))
        return new BadRequest(
          `"${target}" is of the wrong kind for this, or lies below something that is no directory${user === undefined ? "" : `; or user "${user}" is not known in this sandbox`}`,
        );
      if (isRefusal(error, 409))
        return new Conflict(`"${target}" exists already, or is a directory that is not empty`);
      if (isRefusal(error, 413)) return new TooLarge(`"${target}" is larger than the backend takes`);
      if (isRefusal(error, 507)) return new SandboxDiskFull(`"${target}": the sandbox's disk is full`);
      return undefined;
    };
    return { method, path: [...this.#path, ...steps], query, known };
  }
}

/** Backends may end folders with a slash. @returns undefined for what is not below the folder, or leaves it again. */
function pathBelow(given: string, folder: string): string | undefined {
  if (!given.startsWith(folder) || given.includes("\0")) return undefined;
  const steps = given
    .slice(folder.length)
    .split("/")
    .filter((step) => step !== "" && step !== ".");
  return steps.length === 0 || steps.includes("..") ? undefined : folder + steps.join("/");
}

function entryOf(answer: Static<typeof FileAnswer>, target = answer.path): FileEntry {
  return {
    name: path.posix.basename(target),
    path: target,
    type: types.has(answer.type) ? (answer.type as FileType) : "unknown",
    size: Math.min(answer.size, Number.MAX_SAFE_INTEGER),
    mode: answer.mode & 0o7777,
    uid: answer.uid,
    gid: answer.gid,
    modifiedAt: new Date(Math.max(-latestMs, Math.min(latestMs, answer.modified_ms))),
    ...(answer.symlink_target === undefined ? {} : { symlinkTarget: answer.symlink_target }),
  };
}

function tooMany(target: string): TooLarge {
  return new TooLarge(
    `"${target}" has more than ${entriesAtMost} entries, or ${nameBytesAtMost} bytes of names; ask for a part of it`,
  );
}
