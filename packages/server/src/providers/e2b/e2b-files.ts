import { randomBytes } from "node:crypto";
import path from "node:path";
import { Readable } from "node:stream";
import { ignoreOutcome } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Taker } from "../../platform/fair-turns.ts";
import { sortedInTurns } from "../../platform/sorted-in-turns.ts";
import { TakenBody } from "../../platform/taken-body.ts";
import {
  type AnswerRoom,
  BadRequest,
  type CallOptions,
  type Clock,
  Conflict,
  type FileChange,
  type FileEntry,
  type FileOperations,
  NotFound,
  ProviderError,
  RuntimeGone,
  TooLarge,
} from "../../ports/index.ts";
import { BoundedStream } from "../exec-journal/index.ts";
import { matchingPaths } from "../path-pattern/index.ts";
import type { E2bCalls } from "./e2b-calls.ts";
import type { EnvdPrograms } from "./envd-programs.ts";
import { isInvalid, isMissingFile, isUnknownUser } from "./failures.ts";
import {
  archiveScript,
  chmodScript,
  fileProblems,
  findScript,
  partScript,
  placeScript,
  removeScript,
  unpackScript,
} from "./helper-scripts.ts";
import { Owners } from "./owners.ts";
import type { PackageSandbox } from "./package.ts";
import { refuseNumericUser } from "./program-runner.ts";
import { serviceTurns } from "./service-turns.ts";

type PackageEntry = Awaited<ReturnType<PackageSandbox["files"]["getInfo"]>>;

const entriesAtMost = 100_000;
const nameBytesAtMost = 32 * 1_048_576;
const changesAtMost = 10_000;
/** Bytes; no system takes a longer one. */
const longestPath = 4_096;
const cleanupMs = 20_000;
const removeAgainMs = [300, 3_000];
const defaultMode = 0o644;
/** A tar ends with at least one of zeros. */
const tarBlock = 512;
/** What an upload is until it is whole. */
const partName = /^\.alcove-[0-9a-f]{16}$/;
const newPartName = () => `.alcove-${randomBytes(8).toString("hex")}`;
/** Of a list of users or groups, what comes after it is not looked at. */
const usersBytesAtMost = 1_048_576;

/** Files of one sandbox, through envd and, for what it has no call for, through short scripts as root. */
export class E2bFiles implements FileOperations {
  readonly #files: PackageSandbox["files"];
  readonly #programs: EnvdPrograms;
  readonly #calls: E2bCalls;
  readonly #user: string | undefined;
  readonly #owners: Owners;
  readonly #clock: Clock;
  readonly #taker: Taker;
  readonly #closed: AbortSignal;
  readonly #confirm: () => Promise<boolean>;

  constructor(options: {
    sandbox: PackageSandbox;
    programs: EnvdPrograms;
    calls: E2bCalls;
    clock: Clock;
    /** Whose what is written is; undefined: the template's user. */
    user: string | undefined;
    taker: Taker;
    closed: AbortSignal;
    confirm: () => Promise<boolean>;
  }) {
    this.#files = options.sandbox.files;
    this.#programs = options.programs;
    this.#calls = options.calls;
    this.#clock = options.clock;
    this.#user = options.user;
    this.#taker = options.taker;
    this.#closed = options.closed;
    this.#confirm = options.confirm;
    this.#owners = new Owners({
      read: (file, call) =>
        this.#call("read the users of a sandbox", file, call, (signal) => this.#beginning(file, signal)),
    });
  }

  async stat(target: string, options: CallOptions & { follow?: boolean }): Promise<FileEntry> {
    const entry = await this.#info(target, options);
    if (!options.follow || entry.symlinkTarget === undefined) return await this.#entry(entry, options);
    if (entry.type === undefined) throw missing(target);
    const followed = await this.#info(entry.symlinkTarget, options);
    return { ...(await this.#entry(followed, options)), name: path.posix.basename(target), path: target };
  }

  async list(
    target: string,
    options: CallOptions & { depth: number; room?: AnswerRoom },
  ): Promise<FileEntry[]> {
    const { depth, room } = options;
    const found = await this.#call("list a directory", target, options, (signal) =>
      this.#files.list(target, { depth, user: "root", signal }),
    );
    const nameBytes = found.reduce((total, entry) => total + Buffer.byteLength(entry.path), 0);
    if (found.length > entriesAtMost || nameBytes > nameBytesAtMost) throw tooMany(target);
    await room?.(nameBytes);
    const ids = await this.#owners.ids(found, options);
    const entries = found.map((entry, index) => ({
      ...fields(entry),
      ...(ids[index] ?? { uid: 0, gid: 0 }),
    }));
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
    const signal = AbortSignal.any([options.signal, this.#closed, stop.signal]);
    const source =
      length === info.size
        ? await this.#open("read a file", target, options, stop, () =>
            this.#files.read(target, { format: "stream", user: "root", signal }),
          )
        : this.#part(target, offset, length, signal);
    const body = Readable.from(exactly(source, { length, target, stop, calls: this.#calls, signal }), {
      objectMode: false,
    });
    // One that is let go of before it was read never gets to its end.
    body.once("close", () => stop.abort());
    return { info, length, body };
  }

  async write(
    target: string,
    body: AsyncIterable<Uint8Array>,
    options: CallOptions & { mode?: number; user?: string; maxBytes?: number },
  ): Promise<FileEntry> {
    refuseNumericUser(options.user);
    const there = await this.#call("look at a file", target, options, async (signal) =>
      this.#files.getInfo(target, { user: "root", signal }).catch((error: unknown) => {
        if (isMissingFile(error)) return undefined;
        throw error;
      }),
    );
    if (there?.type === "dir") throw new BadRequest(`"${target}" is a directory`);
    if (there !== undefined && there.type !== "file" && there.symlinkTarget === undefined)
      throw new BadRequest(`"${target}" is not a regular file`);
    const mode = options.mode ?? (there?.type === "file" ? there.mode : defaultMode);
    const part = path.posix.join(path.posix.dirname(target), newPartName());
    try {
      await this.#upload(part, body, { ...options, target });
      const args = [part, target, mode.toString(8)];
      const { exitCode, stdout } = await this.#programs.runHelper("write a file", placeScript, args, options);
      if (exitCode !== 0) throw problem(exitCode, target);
      const [size = 0, uid = 0, gid = 0, modified = 0] = stdout.toString().trim().split(" ").map(Number);
      const name = path.posix.basename(target);
      const modifiedAt = new Date(modified * 1_000);
      return { name, path: target, type: "file", size, mode, uid, gid, modifiedAt };
    } catch (error) {
      await this.#removePart(part);
      throw error;
    }
  }

  async mkdir(
    target: string,
    options: CallOptions & { mode?: number; user?: string; parents: boolean },
  ): Promise<FileEntry> {
    refuseNumericUser(options.user);
    if (!options.parents) {
      await this.#info(path.posix.dirname(target), options);
      const there = await this.#info(target, options).catch((error: unknown) => {
        if (error instanceof NotFound) return undefined;
        throw error;
      });
      if (there !== undefined) throw new Conflict(`"${target}" exists already`);
    }
    await this.ensureDirectory(target, options);
    if (options.mode !== undefined) await this.chmod(target, options.mode, options);
    return await this.stat(target, options);
  }

  /** With its parents; in one round trip, since nothing is told of it. */
  async ensureDirectory(target: string, options: CallOptions & { user?: string }): Promise<void> {
    const { user = this.#user } = options;
    await this.#calls.run(
      "make a directory",
      { ...options, known: (error) => this.#known(error, target, user) },
      (signal) => this.#files.makeDir(target, { ...this.#as(user), signal }),
    );
  }

  async move(from: string, to: string, options: CallOptions): Promise<void> {
    const source = await this.#info(from, options);
    const there = await this.#info(to, options).catch((error: unknown) => {
      if (error instanceof NotFound) return undefined;
      throw error;
    });
    const isDirectory = (entry: PackageEntry) => entry.type === "dir" && entry.symlinkTarget === undefined;
    if (isDirectory(source) && path.posix.normalize(to).startsWith(`${path.posix.normalize(from)}/`))
      throw new BadRequest(`"${from}" cannot be moved below itself`);
    if (there !== undefined && isDirectory(there) !== isDirectory(source))
      throw new BadRequest(
        `"${to}" is ${isDirectory(there) ? "a directory, and what would replace it is none" : "no directory, and what would replace it is one"}; remove it first`,
      );
    if (there !== undefined && isDirectory(there) && (await this.#names(to, options)) > 0)
      throw new Conflict(`"${to}" is a directory that is not empty; remove it first`);
    await this.#call("move a file", from, options, (signal) =>
      this.#files.rename(from, to, { ...this.#as(undefined), signal }),
    );
  }

  async remove(target: string, options: CallOptions & { recursive: boolean }): Promise<void> {
    if (path.posix.normalize(target).replace(/\/+$/, "") === "")
      throw new BadRequest("the root of a sandbox cannot be removed");
    if (!options.recursive) {
      await this.#script("remove a file", target, removeScript, [target], options);
      return;
    }
    await this.#info(target, options);
    await this.#call("remove a file", target, options, (signal) =>
      this.#files.remove(target, { user: "root", signal }),
    );
  }

  async chmod(target: string, mode: number, options: CallOptions): Promise<void> {
    await this.#script("change a mode", target, chmodScript, [target, mode.toString(8)], options);
  }

  async glob(pattern: string, options: CallOptions & { room?: AnswerRoom }): Promise<string[]> {
    // Refused before anything is asked of the sandbox.
    await matchingPaths([], pattern, options);
    const steps = pattern.split("/");
    const isPlain = (step: string) => !/[*?[\]{}\\]/.test(step);
    const firstWild = steps.findIndex((step) => !isPlain(step));
    const base = (firstWild < 0 ? steps : steps.slice(0, firstWild)).join("/") || "/";
    const isBounded = !pattern.includes("**") && !/\{[^}]*\//.test(pattern);
    const depth = isBounded
      ? String(Math.max(0, steps.length - (firstWild < 0 ? steps.length : firstWild)))
      : "";
    const { stdout } = await this.#programs.runHelper("search files", findScript, [base, depth], {
      ...options,
      outputAtMost: nameBytesAtMost,
    });
    const found = await matchingPaths(endedByNul(stdout), pattern, { ...options, atMost: entriesAtMost });
    if (found.length > entriesAtMost) throw tooMany(pattern);
    await options.room?.(found.reduce((total, each) => total + Buffer.byteLength(each), 0));
    return await sortedInTurns(found, String);
  }

  async archive(target: string, options: CallOptions): Promise<Readable> {
    await this.#info(target, options);
    const stop = new AbortController();
    const signal = AbortSignal.any([options.signal, this.#closed, stop.signal]);
    return Readable.from(this.#output("pack a directory", [archiveScript, target], signal, stop), {
      objectMode: false,
    });
  }

  async unpack(
    target: string,
    body: AsyncIterable<Uint8Array>,
    options: CallOptions & { user?: string },
  ): Promise<{ entries: number }> {
    await this.mkdir(target, { ...options, parents: true });
    const part = `/tmp/${newPartName()}`;
    try {
      await this.#upload(part, withItsEnd(body), { ...options, target });
      const { exitCode, stdout } = await this.#programs.runHelper(
        "unpack a directory",
        unpackScript,
        [part, target],
        // Whose it will be; null: the template's user.
        { ...options, user: options.user ?? this.#user ?? null },
      );
      if (exitCode !== 0) throw problem(exitCode, target);
      return { entries: Number(stdout.toString()) };
    } finally {
      await this.#removePart(part);
    }
  }

  async watch(
    target: string,
    options: CallOptions & { recursive: boolean },
  ): Promise<AsyncIterable<FileChange>> {
    const stop = new AbortController();
    const signal = AbortSignal.any([options.signal, this.#closed, stop.signal]);
    const changes = new BoundedStream<FileChange>({
      limit: changesAtMost,
      signal,
      overflow: { type: "overflow", path: target },
    });
    let isPlaced = false;
    const tell = async ({ type, name }: { type: FileChange["type"]; name: string }) => {
      const isPart = partName.test(path.posix.basename(name));
      // What takes the place of a finished upload: new or not, nobody says.
      const isWritten = isPlaced && (type === "rename" || type === "create");
      isPlaced = isPart && type === "rename";
      if (!isPart) changes.push({ type: isWritten ? "write" : type, path: path.posix.join(target, name) });
      await serviceTurns.claim(this.#taker);
    };
    const handle = await this.#open("watch a directory", target, options, stop, () =>
      this.#files.watchDir(target, tell, {
        recursive: options.recursive,
        timeoutMs: 0,
        user: "root",
        signal,
        onExit: () => changes.end(),
      }),
    );
    changes.onEnd(() => void handle.stop());
    return changes;
  }

  async #upload(
    part: string,
    body: AsyncIterable<Uint8Array>,
    options: CallOptions & { user?: string; maxBytes?: number; target: string },
  ): Promise<void> {
    let failure: { error: unknown } | undefined;
    let bytes = 0;
    const stop = new AbortController();
    async function* bounded(): AsyncGenerator<Uint8Array> {
      try {
        for await (const data of body) {
          bytes += data.length;
          if (options.maxBytes !== undefined && bytes > options.maxBytes)
            throw new TooLarge(`the upload to "${options.target}" is larger than ${options.maxBytes} bytes`);
          yield data;
        }
      } catch (error) {
        failure = { error };
        stop.abort();
        throw error;
      }
    }
    using taken = new TakenBody({ atMostMs: this.#calls.timeoutMs });
    const signal = AbortSignal.any([options.signal, this.#closed, stop.signal, taken.signal]);
    const source = taken.pass(bounded());
    // The package's type names the browser's streams.
    const stream = ReadableStream.from(source);
    try {
      // As long as its caller takes to send it, unlike other calls.
      await this.#files.write(part, stream, { ...this.#as(options.user), useOctetStream: true, signal });
    } catch (error) {
      if (failure !== undefined && !taken.signal.aborted) throw failure.error;
      options.signal.throwIfAborted();
      throw (
        (await this.#known(error, options.target, options.user)) ??
        this.#calls.failures.translate("write a file", error, signal)
      );
    } finally {
      stop.abort();
    }
  }

  /** What was broken off may be made only after it was removed: the sandbox may be behind. */
  async #removePart(part: string): Promise<void> {
    const remove = async () => {
      using deadline = deadlineAfter(cleanupMs, this.#closed);
      // The sandbox may be gone; if it is not, a hidden file stays.
      await this.#files.remove(part, { user: "root", signal: deadline.signal }).catch(ignoreOutcome);
    };
    await remove();
    for (const afterMs of removeAgainMs)
      this.#clock.setTimer(afterMs, () => {
        if (!this.#closed.aborted) void remove();
      });
  }

  #part(target: string, offset: number, length: number, signal: AbortSignal): AsyncGenerator<Uint8Array> {
    return this.#output("read a file", [partScript, target, String(offset + 1), String(length)], signal);
  }

  /** What a script of ours prints, as it does. @throws ProviderError at its end when it failed. */
  async *#output(
    what: string,
    [script = "", ...args]: readonly string[],
    signal: AbortSignal,
    stop?: AbortController,
  ): AsyncGenerator<Uint8Array> {
    const events = this.#programs.start({
      argv: ["/bin/sh", "-c", script, "sh", ...args],
      env: {},
      workdir: "/",
      user: "root",
      stdin: false,
      timeoutMs: 0,
      signal,
    });
    try {
      for await (const event of events) {
        if (event.type === "output" && event.stream === "stdout") yield event.data;
        if (event.type !== "end") continue;
        if (event.exitCode === 0) return;
        throw new ProviderError(`the sandbox could not ${what} (its tools ended with ${event.exitCode})`);
      }
    } catch (error) {
      throw this.#calls.failures.translate(what, error, signal);
    } finally {
      stop?.abort();
    }
    throw new ProviderError(`e2b broke off what was to ${what}`);
  }

  /** A sandbox may say that its users are without end. */
  async #beginning(file: string, signal: AbortSignal): Promise<Uint8Array> {
    const stop = new AbortController();
    const parts: Uint8Array[] = [];
    let bytes = 0;
    try {
      const source = await this.#files.read(file, {
        format: "stream",
        user: "root",
        signal: AbortSignal.any([signal, stop.signal]),
      });
      for await (const data of source) {
        parts.push(data);
        bytes += data.length;
        if (bytes >= usersBytesAtMost) break;
      }
    } finally {
      stop.abort();
    }
    return Buffer.concat(parts).subarray(0, usersBytesAtMost);
  }

  /** How many entries a directory has, those that a list leaves out included. */
  async #names(target: string, options: CallOptions): Promise<number> {
    const { stdout } = await this.#programs.runHelper("list a directory", findScript, [target, "1"], options);
    return stdout.toString().split("\0").length - 2;
  }

  async #info(target: string, options: CallOptions): Promise<PackageEntry> {
    return await this.#call("look at a file", target, options, (signal) =>
      this.#files.getInfo(target, { user: "root", signal }),
    );
  }

  async #entry(entry: PackageEntry, options: CallOptions): Promise<FileEntry> {
    const [ids = { uid: 0, gid: 0 }] = await this.#owners.ids([entry], options);
    return { ...fields(entry), ...ids };
  }

  async #script(
    what: string,
    target: string,
    script: string,
    args: readonly string[],
    options: CallOptions,
  ): Promise<void> {
    const { exitCode } = await this.#programs.runHelper(what, script, args, options);
    if (exitCode !== 0) throw problem(exitCode, target);
  }

  /** Opens what lasts longer than the call: where that fails, `stop` ends what may still come of it. */
  async #open<T>(
    what: string,
    target: string,
    options: CallOptions,
    stop: AbortController,
    call: () => Promise<T>,
  ): Promise<T> {
    try {
      return await this.#call(what, target, options, call);
    } catch (error) {
      stop.abort();
      throw error;
    }
  }

  #call<T>(
    what: string,
    target: string,
    options: CallOptions,
    call: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    return this.#calls.run(what, { ...options, known: (error) => this.#known(error, target) }, call);
  }

  async #known(error: unknown, target: string, user?: string): Promise<Error | undefined> {
    if (isMissingFile(error)) return missing(target);
    if (user !== undefined && isUnknownUser(error))
      return new BadRequest(`user "${user}" is not known in this sandbox`);
    if (isInvalid(error)) return new BadRequest(`"${target}" is not the kind of file this needs`);
    return (await this.#confirm()) ? undefined : new RuntimeGone("the sandbox has ended");
  }

  #as(user: string | undefined): { user?: string } {
    const name = user ?? this.#user;
    return name === undefined ? {} : { user: name };
  }
}

function fields(entry: PackageEntry): Omit<FileEntry, "uid" | "gid"> {
  const { name, size, mode, modifiedTime, symlinkTarget } = entry;
  const type = symlinkTarget === undefined ? (entry.type ?? "unknown") : "symlink";
  return {
    name,
    path: entry.path,
    type,
    size,
    mode: mode & 0o7777,
    modifiedAt: modifiedTime ?? new Date(0),
    ...(symlinkTarget === undefined ? {} : { symlinkTarget }),
  };
}

/** A body of the length that was announced, or one that fails. */
async function* exactly(
  source: AsyncIterable<Uint8Array>,
  options: { length: number; target: string; stop: AbortController; calls: E2bCalls; signal: AbortSignal },
): AsyncGenerator<Buffer> {
  let left = options.length;
  try {
    for await (const data of source) {
      const part = Buffer.from(data.buffer, data.byteOffset, Math.min(data.length, left));
      left -= part.length;
      if (part.length > 0) yield part;
      if (left === 0) return;
    }
  } catch (error) {
    throw options.calls.failures.translate("read a file", error, options.signal);
  } finally {
    options.stop.abort();
  }
  throw new ProviderError(`"${options.target}" became shorter while it was read`);
}

/** A tar as it is. @throws BadRequest at the end of one that has none: most programs take what was cut off between entries for whole. */
async function* withItsEnd(archive: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let last = Buffer.alloc(0);
  for await (const data of archive) {
    last = Buffer.from(Buffer.concat([last, data.subarray(-tarBlock)]).subarray(-tarBlock));
    yield data;
  }
  if (last.length < tarBlock || last.some((byte) => byte !== 0))
    throw new BadRequest("the body is no tar, or one that was cut off");
}

function problem(exitCode: number, target: string): Error {
  switch (exitCode) {
    case fileProblems.missing:
      return missing(target);
    case fileProblems.directory:
      return new BadRequest(`"${target}" is a directory`);
    case fileProblems.notDirectory:
      return new BadRequest(`"${target}" is not a regular file`);
    case fileProblems.noTar:
      return new BadRequest("the body is no tar, or a broken one");
    case fileProblems.outside:
      return new BadRequest(`the archive has names that lie outside of "${target}"`);
    case fileProblems.full:
      return new Conflict(`"${target}" is a directory that is not empty; ask for recursive`);
    default:
      return new ProviderError(`the sandbox could not change "${target}" (its tools ended with ${exitCode})`);
  }
}

/** One after the other: there may be millions. What is longer than any path is none. */
function* endedByNul(text: Buffer): Generator<string> {
  let from = 0;
  for (let end = text.indexOf(0); end >= 0; end = text.indexOf(0, from)) {
    if (end > from && end - from <= longestPath) yield text.toString("utf8", from, end);
    from = end + 1;
  }
}

function missing(target: string): NotFound {
  return new NotFound(`"${target}" does not exist in this sandbox`, { what: "file" });
}

function tooMany(target: string): TooLarge {
  return new TooLarge(`"${target}" has more than ${entriesAtMost} entries or 32 MiB of names; ask for less`);
}
