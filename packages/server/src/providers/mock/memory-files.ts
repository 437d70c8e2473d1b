import path from "node:path";
import { Readable } from "node:stream";
import { readTar, type TarHeader } from "../../platform/tar/tar-reader.ts";
import { tarEnd, tarHeader, tarPadded } from "../../platform/tar/tar-writer.ts";
import {
  BadRequest,
  Conflict,
  type DomainError,
  NotFound,
  ProviderError,
  SandboxDiskFull,
  TooLarge,
} from "../../ports/errors.ts";
import type { CallOptions, FileChange, FileEntry, FileOperations } from "../../ports/sandbox-operations.ts";
import { BoundedStream } from "../exec-journal/index.ts";
import { matchingPaths } from "../path-pattern/index.ts";
import { findUser, type Owner, type SandboxFs } from "./sandbox-fs.ts";

const entriesAtMost = 100_000;
const watchQueue = 4_096;
const chunkBytes = 256 * 1_024;

/** The files API on a simulated sandbox's in-memory file system. */
export class MemoryFiles implements FileOperations {
  readonly #fs: () => SandboxFs;
  readonly #ended: AbortSignal;
  readonly #defaultOwner: Owner;

  constructor(options: { fs: () => SandboxFs; ended: AbortSignal; defaultOwner: Owner }) {
    this.#fs = options.fs;
    this.#ended = options.ended;
    this.#defaultOwner = options.defaultOwner;
  }

  async stat(target: string, options: CallOptions & { follow?: boolean }): Promise<FileEntry> {
    return await translate(target, () => this.#entry(normal(target), options.follow === true));
  }

  async list(target: string, options: CallOptions & { depth: number }): Promise<FileEntry[]> {
    return await translate(target, async () => {
      const root = normal(target);
      if (!(await this.#fs().memory.stat(root)).isDirectory)
        throw new BadRequest(`"${target}" is not a directory`);
      const entries: FileEntry[] = [];
      await this.#collect(root, options.depth, entries);
      return entries;
    });
  }

  async read(
    target: string,
    options: CallOptions & { offset?: number; length?: number },
  ): Promise<{ info: FileEntry; length: number | null; body: Readable }> {
    return await translate(target, async () => {
      const info = await this.#entry(normal(target), true);
      if (info.type === "dir") throw new BadRequest(`"${target}" is a directory`);
      if (info.type !== "file") throw new BadRequest(`"${target}" is not a regular file`);
      const content = await this.#fs().memory.readFileBuffer(info.path);
      const start = Math.min(options.offset ?? 0, content.length);
      const end =
        options.length === undefined ? content.length : Math.min(start + options.length, content.length);
      const wanted = Buffer.from(content.subarray(start, end));
      return { info, length: wanted.length, body: Readable.from(chunksOf(wanted), { objectMode: false }) };
    });
  }

  async write(
    target: string,
    body: AsyncIterable<Uint8Array>,
    options: CallOptions & { mode?: number; user?: string; maxBytes?: number },
  ): Promise<FileEntry> {
    const fs = this.#fs();
    const owner = this.#owner(options.user);
    const { maxBytes, signal } = options;
    const content = await collectBody(body, { maxBytes, room: fs.maxBytes, target, signal });
    return await translate(target, async () => {
      const file = normal(target);
      const before = await fs.memory.stat(file).catch(() => undefined);
      if (before?.isDirectory) throw new BadRequest(`"${target}" is a directory`);
      if (before === undefined) await this.#makeParents(file, owner);
      await fs.call("writeFile", [file, content]);
      if (before === undefined) fs.setOwner(file, owner);
      const kept = before === undefined ? 0o644 : before.mode & 0o7777;
      await fs.memory.chmod(file, options.mode ?? kept);
      return await this.#entry(file, true);
    });
  }

  async mkdir(
    target: string,
    options: CallOptions & { mode?: number; user?: string; parents: boolean },
  ): Promise<FileEntry> {
    const fs = this.#fs();
    const owner = this.#owner(options.user);
    return await translate(target, async () => {
      const directory = normal(target);
      const before = await fs.memory.stat(directory).catch(() => undefined);
      if (before !== undefined && !(before.isDirectory && options.parents))
        throw new Conflict(`"${target}" exists already`);
      if (before === undefined) {
        if (options.parents) await this.#makeParents(directory, owner);
        await fs.call("mkdir", [directory]);
        fs.setOwner(directory, owner);
        await fs.memory.chmod(directory, options.mode ?? 0o755);
      }
      return await this.#entry(directory, true);
    });
  }

  async move(from: string, to: string, _options: CallOptions): Promise<void> {
    const fs = this.#fs();
    await translate(from, async () => {
      const source = normal(from);
      const target = normal(to);
      const moved = await fs.memory.lstat(source);
      if (target === source) return;
      if (source === "/" || target.startsWith(`${source}/`))
        throw new BadRequest(`"${from}" cannot be moved into itself`);
      const there = await fs.memory.lstat(target).catch(() => undefined);
      if (there?.isDirectory && !moved.isDirectory) throw new BadRequest(`"${to}" is a directory`);
      if (there !== undefined && !there.isDirectory && moved.isDirectory)
        throw new BadRequest(`"${to}" is not a directory`);
      if (there?.isDirectory && (await fs.memory.readdir(target)).length > 0)
        throw new Conflict(`"${to}" is a directory that is not empty`);
      if (there !== undefined) await fs.call("rm", [target, { recursive: true }]);
      else await this.#makeParents(target, this.#defaultOwner);
      await fs.call("mv", [source, target]);
    });
  }

  async remove(target: string, options: CallOptions & { recursive: boolean }): Promise<void> {
    const fs = this.#fs();
    await translate(target, async () => {
      const removed = normal(target);
      if (removed === "/") throw new BadRequest('"/" cannot be removed');
      const found = await fs.memory.lstat(removed);
      if (found.isDirectory && !options.recursive && (await fs.memory.readdir(removed)).length > 0)
        throw new Conflict(`"${target}" is a directory that is not empty`);
      await fs.call("rm", [removed, { recursive: true }]);
    });
  }

  async chmod(target: string, mode: number, _options: CallOptions): Promise<void> {
    await translate(target, async () => {
      await this.#fs().memory.stat(normal(target));
      await this.#fs().call("chmod", [normal(target), mode]);
    });
  }

  async glob(pattern: string, options: CallOptions): Promise<string[]> {
    const paths = await matchingPaths(this.#fs().memory.getAllPaths(), pattern, options);
    return paths.sort().slice(0, entriesAtMost);
  }

  async archive(target: string, _options: CallOptions): Promise<Readable> {
    return await translate(target, async () => {
      const root = await this.#entry(normal(target), true);
      const entries: FileEntry[] = [];
      if (root.type === "dir") await this.#collect(root.path, Number.POSITIVE_INFINITY, entries);
      else entries.push(root);
      const base = root.type === "dir" ? root.path : path.posix.dirname(root.path);
      return Readable.from(this.#archived(entries, base), { objectMode: false });
    });
  }

  async *#archived(entries: readonly FileEntry[], base: string): AsyncGenerator<Buffer> {
    for (const entry of entries) {
      if (entry.type !== "file" && entry.type !== "dir" && entry.type !== "symlink") continue;
      const content = entry.type === "file" ? await this.#fs().memory.readFileBuffer(entry.path) : [];
      yield tarHeader({
        name: path.posix.relative(base, entry.path),
        type: entry.type,
        mode: entry.mode,
        size: content.length,
        uid: entry.uid,
        gid: entry.gid,
        mtime: entry.modifiedAt,
        ...(entry.symlinkTarget === undefined ? {} : { linkTarget: entry.symlinkTarget }),
      });
      if (content.length > 0) yield tarPadded(Buffer.from(content));
    }
    yield tarEnd;
  }

  async unpack(
    target: string,
    body: AsyncIterable<Uint8Array>,
    options: CallOptions & { user?: string },
  ): Promise<{ entries: number }> {
    const fs = this.#fs();
    const owner = this.#owner(options.user);
    const content = await collectBody(body, { room: fs.maxBytes, target, signal: options.signal });
    return await translate(target, async () => {
      const root = normal(target);
      if (!(await fs.memory.stat(root)).isDirectory) throw new BadRequest(`"${target}" is not a directory`);
      let entries = 0;
      for await (const { header, body } of readTar(Readable.from([content])))
        if (await this.#unpackEntry(fs, root, { header, body, owner })) entries += 1;
      return { entries };
    });
  }

  async watch(
    target: string,
    options: CallOptions & { recursive: boolean },
  ): Promise<AsyncIterable<FileChange>> {
    const fs = this.#fs();
    const root = normal(target);
    await translate(target, () => fs.memory.stat(root));
    const signal = AbortSignal.any([options.signal, this.#ended]);
    const stream = new BoundedStream<FileChange>({
      limit: watchQueue,
      signal,
      overflow: { type: "overflow", path: root },
    });
    const inside = root === "/" ? "/" : `${root}/`;
    const unsubscribe = fs.onChange((change) => {
      const below = change.path.startsWith(inside) ? change.path.slice(inside.length) : undefined;
      if (change.path !== root && (below === undefined || (below.includes("/") && !options.recursive)))
        return;
      stream.push(change);
    });
    stream.onEnd(unsubscribe);
    return stream;
  }

  async #unpackEntry(
    fs: SandboxFs,
    root: string,
    member: { header: TarHeader; body: () => AsyncIterable<Buffer>; owner: Owner },
  ): Promise<boolean> {
    const { header: entry, owner } = member;
    if (entry.name.startsWith("/") || entry.name.split("/").includes(".."))
      throw new BadRequest(`the archive holds "${entry.name}", which lies outside of the target`);
    const target = path.posix.join(root, entry.name);
    const parent = path.posix.dirname(target);
    if (target !== root) await this.#makeParents(target, owner);
    const real = target === root ? root : await fs.memory.realpath(parent);
    const realRoot = await fs.memory.realpath(root);
    if (real !== root && real !== realRoot && !real.startsWith(realRoot === "/" ? "/" : `${realRoot}/`))
      throw new BadRequest(`the archive's "${entry.name}" leads outside of the target through a symlink`);
    switch (entry.type) {
      case "dir":
        if (!(await fs.memory.exists(target))) await fs.call("mkdir", [target]);
        break;
      case "symlink":
        await fs.call("rm", [target, { force: true, recursive: true }]);
        await fs.call("symlink", [entry.linkTarget, target]);
        fs.setOwner(target, owner);
        return true;
      case "file":
        if (
          await fs.memory.lstat(target).then(
            (found) => found.isSymbolicLink,
            () => false,
          )
        )
          await fs.call("rm", [target, {}]);
        await fs.call("writeFile", [target, Buffer.concat(await Array.fromAsync(member.body()))]);
        break;
      case "hardlink":
      case "special":
        return false;
      default:
        entry.type satisfies never;
    }
    await fs.memory.chmod(target, entry.mode);
    fs.setOwner(target, owner);
    return true;
  }

  async #entry(target: string, follow: boolean): Promise<FileEntry> {
    const fs = this.#fs();
    const found = follow ? await fs.memory.stat(target) : await fs.memory.lstat(target);
    const kind = found.isDirectory ? "dir" : found.isSymbolicLink ? "symlink" : "file";
    return {
      name: path.posix.basename(target) || "/",
      path: target,
      type: kind,
      size: found.size,
      mode: found.mode & 0o7777,
      ...fs.ownerOf(target),
      modifiedAt: found.mtime,
      ...(kind === "symlink" ? { symlinkTarget: await fs.memory.readlink(target) } : {}),
    };
  }

  async #collect(directory: string, depth: number, entries: FileEntry[]): Promise<void> {
    for (const name of (await this.#fs().memory.readdir(directory)).sort()) {
      if (entries.length >= entriesAtMost)
        throw new TooLarge(`"${directory}" holds more than ${entriesAtMost} entries`);
      const entry = await this.#entry(path.posix.join(directory, name), false);
      entries.push(entry);
      if (entry.type === "dir" && depth > 1) await this.#collect(entry.path, depth - 1, entries);
    }
  }

  async #makeParents(target: string, owner: Owner): Promise<void> {
    const fs = this.#fs();
    const missing: string[] = [];
    let parent = path.posix.dirname(target);
    while (!(await fs.memory.exists(parent))) {
      missing.unshift(parent);
      parent = path.posix.dirname(parent);
    }
    if (!(await fs.memory.stat(parent)).isDirectory) throw new BadRequest(`"${parent}" is not a directory`);
    for (const each of missing) {
      await fs.call("mkdir", [each]);
      fs.setOwner(each, owner);
    }
  }

  #owner(user: string | undefined): Owner {
    if (user === undefined) return this.#defaultOwner;
    const found = findUser(user);
    if (found === undefined) throw new BadRequest(`user "${user}" is not known in this sandbox`);
    return { uid: found.uid, gid: found.gid };
  }
}

function normal(target: string): string {
  const clean = path.posix.normalize(target);
  return clean.length > 1 && clean.endsWith("/") ? clean.slice(0, -1) : clean;
}

function* chunksOf(content: Buffer): Generator<Buffer> {
  for (let at = 0; at < content.length; at += chunkBytes) yield content.subarray(at, at + chunkBytes);
}

async function collectBody(
  body: AsyncIterable<Uint8Array>,
  options: { maxBytes?: number | undefined; room: number; target: string; signal: AbortSignal },
): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let total = 0;
  options.signal.throwIfAborted();
  const aborted = Promise.withResolvers<never>();
  const abort = () => aborted.reject(options.signal.reason);
  options.signal.addEventListener("abort", abort, { once: true });
  using cleanup = new DisposableStack();
  cleanup.defer(() => options.signal.removeEventListener("abort", abort));
  const iterator = body[Symbol.asyncIterator]();
  for (;;) {
    const next = await Promise.race([iterator.next(), aborted.promise]);
    if (next.done === true) break;
    const chunk = next.value;
    total += chunk.length;
    if (options.maxBytes !== undefined && total > options.maxBytes)
      throw new TooLarge(`"${options.target}" would be larger than the ${options.maxBytes} bytes allowed`);
    if (total > options.room) throw diskFull(options.target);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** Turns the errno in front of a file system's message into the error of the port. */
async function translate<T>(target: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const code = error instanceof Error ? /^(E[A-Z]+)\b/.exec(error.message)?.[1] : undefined;
    if (code === undefined) throw error;
    throw domainError(code, target, error);
  }
}

function diskFull(target: string, cause?: unknown): SandboxDiskFull {
  return new SandboxDiskFull(`"${target}": the sandbox's disk is full`, { cause });
}

function domainError(code: string, target: string, cause: unknown): DomainError {
  switch (code) {
    case "ENOENT":
      return new NotFound(`"${target}" does not exist`, { what: "file", cause });
    case "ENOTDIR":
      return new BadRequest(`a part of "${target}" is not a directory`, { cause });
    case "EISDIR":
      return new BadRequest(`"${target}" is a directory`, { cause });
    case "ELOOP":
      return new BadRequest(`"${target}" has too many symlinks`, { cause });
    case "EEXIST":
      return new Conflict(`"${target}" exists already`, { cause });
    case "ENOTEMPTY":
      return new Conflict(`"${target}" is a directory that is not empty`, { cause });
    case "ENOSPC":
    case "EFBIG":
      return diskFull(target, cause);
    default:
      return new ProviderError(`the simulated file system failed on "${target}" with ${code}`, { cause });
  }
}
