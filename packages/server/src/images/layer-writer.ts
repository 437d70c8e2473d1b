import fs from "node:fs";
import path from "node:path";
import { readTar, type TarHeader } from "../platform/tar/tar-reader.ts";
import { BadRequest } from "../ports/errors.ts";
import type { UnpackBudget } from "./unpack-budget.ts";

const whiteoutPrefix = ".wh.";
const opaqueMarker = ".wh..wh..opq";
const mostLinks = 40;

export interface LayerResult {
  entries: number;
  /** Bytes of regular files. */
  bytes: number;
  /** Devices, FIFOs and sockets that were left out. */
  skipped: number;
}

/**
 * Writes a tar below `root`, which nobody else changes meanwhile. Nothing it does reaches outside of `root`: names with
 * `..` are refused, symlinks on the way are resolved as if `root` were `/`, the last part of a name is replaced and never
 * followed, hard links may only point at what is inside. Device nodes are left out, setuid and setgid bits too: the store
 * lies on the host. As root, owners are kept as numbers; otherwise all belongs to this user, who can always delete it.
 */
export async function writeLayer(
  source: AsyncIterable<Uint8Array>,
  options: {
    root: string;
    /** Whether names that begin with `.wh.` remove what lower layers hold. */
    whiteouts: boolean;
    signal: AbortSignal;
    /** Shared by the layers of one image. @throws TooLarge, StorageFull. */
    budget?: UnpackBudget;
    onBytes?: (bytes: number) => void;
  },
): Promise<LayerResult> {
  const { budget } = options;
  const writer = new LayerWriter(options.root, () => budget?.entry());
  const result: LayerResult = { entries: 0, bytes: 0, skipped: 0 };
  for await (const { header, body } of readTar(source)) {
    options.signal.throwIfAborted();
    budget?.entry();
    const name = partsOf(header.name);
    const last = name.at(-1);
    if (last === undefined) {
      writer.setRoot(header);
      continue;
    }
    if (options.whiteouts && last.startsWith(whiteoutPrefix)) {
      writer.whiteOut(name);
      continue;
    }
    if (header.type === "special") {
      result.skipped += 1;
      continue;
    }
    result.entries += 1;
    if (header.type === "file") {
      using file = writer.openFile(name);
      for await (const part of body()) {
        options.signal.throwIfAborted();
        budget?.bytes(part.length);
        file.write(part);
        options.onBytes?.(part.length);
      }
      file.finish(header);
      result.bytes += header.size;
    } else writer.make(name, header);
  }
  return result;
}

/** @throws BadRequest for a name that climbs. */
function partsOf(name: string): string[] {
  const parts = name.split("/").filter((part) => part !== "" && part !== ".");
  if (parts.includes(".."))
    throw new BadRequest(`the archive holds ${JSON.stringify(name)}, which leads outside of it`);
  return parts;
}

class LayerWriter {
  readonly #root: string;
  readonly #keepsOwners = process.getuid?.() === 0;
  /** Parents resolved already, by name; emptied when a directory or symlink goes away. */
  #parents = new Map<string, string>();
  /** What this layer made: a whiteout of the same layer hides only what lies below. */
  readonly #made = new Set<string>();
  /** The directories above what this layer made. */
  readonly #above = new Set<string>();
  /** What whiteouts of this layer have hidden: nothing of lower layers is left there. */
  readonly #hidden = new Set<string>();
  readonly #onDirectoryMade: () => void;

  constructor(root: string, onDirectoryMade: () => void) {
    this.#root = root;
    this.#onDirectoryMade = onDirectoryMade;
  }

  setRoot(header: TarHeader): void {
    if (header.type !== "dir") return;
    // Whoever runs inside must be able to enter its own root.
    this.#finishDirectory(this.#root, { ...header, mode: header.mode | 0o555 });
  }

  /** Makes a directory, symlink or hard link. */
  make(name: string[], header: TarHeader): void {
    const target = this.#target(name);
    if (header.type === "dir") {
      if (kindOf(target) !== "dir") {
        this.#remove(target);
        fs.mkdirSync(target, { mode: 0o700 });
      }
      this.#finishDirectory(target, header);
    } else if (header.type === "symlink") {
      this.#remove(target);
      fs.symlinkSync(header.linkTarget, target);
      if (this.#keepsOwners) fs.lchownSync(target, header.uid, header.gid);
    } else this.#link(target, header);
    this.#noteMade(target);
  }

  openFile(name: string[]): Disposable & { write(part: Buffer): void; finish(header: TarHeader): void } {
    const target = this.#target(name);
    this.#remove(target);
    this.#noteMade(target);
    const descriptor = fs.openSync(
      target,
      fs.constants.O_WRONLY | fs.constants.O_CREAT | fs.constants.O_EXCL | fs.constants.O_NOFOLLOW,
      0o600,
    );
    return {
      write: (part) => {
        for (let at = 0; at < part.length; ) at += fs.writeSync(descriptor, part, at);
      },
      finish: (header) => {
        if (this.#keepsOwners) fs.fchownSync(descriptor, header.uid, header.gid);
        fs.fchmodSync(descriptor, this.#keepsOwners ? header.mode & 0o1777 : (header.mode & 0o1777) | 0o600);
        fs.futimesSync(descriptor, header.mtime, header.mtime);
      },
      [Symbol.dispose]: () => fs.closeSync(descriptor),
    };
  }

  whiteOut(name: string[]): void {
    const last = name.at(-1) ?? "";
    const parent = this.#parent(name.slice(0, -1));
    const mark = last === opaqueMarker ? path.join(parent, opaqueMarker) : hiddenBy(parent, last);
    // A second time there is nothing left to hide: reading the directory again and again would be quadratic.
    if (this.#hidden.has(mark)) return;
    this.#hidden.add(mark);
    const hidden =
      last === opaqueMarker ? fs.readdirSync(parent).map((each) => path.join(parent, each)) : [mark];
    for (const each of hidden) if (!this.#made.has(each)) this.#removeLower(each);
  }

  #noteMade(target: string): void {
    this.#made.add(target);
    for (let above = path.dirname(target); above.length >= this.#root.length; above = path.dirname(above)) {
      if (this.#above.has(above)) return;
      this.#above.add(above);
    }
  }

  /** Removes what lower layers hold at `target`; what this layer made below it stays. */
  #removeLower(target: string): void {
    if (!this.#above.has(target)) {
      this.#remove(target);
      return;
    }
    for (const each of fs.readdirSync(target)) {
      const inner = path.join(target, each);
      if (!this.#made.has(inner)) this.#removeLower(inner);
    }
  }

  #link(target: string, header: TarHeader): void {
    const parts = partsOf(header.linkTarget);
    const existing = path.join(this.#parent(parts.slice(0, -1)), parts.at(-1) ?? "");
    const kind = parts.length === 0 ? "dir" : kindOf(existing);
    if (kind !== "file" && kind !== "symlink")
      throw new BadRequest(
        `the archive links ${JSON.stringify(header.name)} to ${JSON.stringify(header.linkTarget)}, which is no file in it`,
      );
    if (existing === target) return;
    this.#remove(target);
    fs.linkSync(existing, target);
  }

  #finishDirectory(target: string, header: TarHeader): void {
    if (this.#keepsOwners) fs.lchownSync(target, header.uid, header.gid);
    fs.chmodSync(target, (header.mode & 0o1777) | (this.#keepsOwners ? 0 : 0o700));
  }

  #target(name: string[]): string {
    return path.join(this.#parent(name.slice(0, -1)), name.at(-1) ?? "");
  }

  /** The real directory a name's parents lead to; missing ones are made. */
  #parent(parts: string[]): string {
    const key = parts.join("/");
    const known = this.#parents.get(key);
    if (known !== undefined) return known;
    const real = this.#resolve(parts);
    this.#parents.set(key, real);
    return real;
  }

  #resolve(parts: string[]): string {
    const waiting = [...parts].reverse();
    let at: string[] = [];
    let links = 0;
    for (let part = waiting.pop(); part !== undefined; part = waiting.pop()) {
      if (part === "" || part === ".") continue;
      if (part === "..") {
        at.pop();
        continue;
      }
      const next = path.join(this.#root, ...at, part);
      const kind = kindOf(next);
      if (kind === "symlink") {
        links += 1;
        if (links > mostLinks)
          throw new BadRequest(`the archive has too many symlinks on the way to ${parts.join("/")}`);
        const target = fs.readlinkSync(next);
        if (target.startsWith("/")) at = [];
        waiting.push(...target.split("/").reverse());
        continue;
      }
      if (kind === undefined) {
        this.#onDirectoryMade();
        fs.mkdirSync(next, { mode: 0o755 });
        fs.chmodSync(next, 0o755);
      } else if (kind !== "dir")
        throw new BadRequest(`the archive treats the file ${at.concat(part).join("/")} as a directory`);
      at.push(part);
    }
    return path.join(this.#root, ...at);
  }

  #remove(target: string): void {
    const kind = kindOf(target);
    if (kind === undefined) return;
    if (kind !== "file") this.#parents = new Map();
    fs.rmSync(target, { recursive: true, force: true });
  }
}

function hiddenBy(parent: string, whiteout: string): string {
  const name = whiteout.slice(whiteoutPrefix.length);
  if (name === "" || name === "." || name === "..")
    throw new BadRequest(`the archive holds the whiteout ${JSON.stringify(whiteout)}`);
  return path.join(parent, name);
}

function kindOf(target: string): "file" | "dir" | "symlink" | "other" | undefined {
  const found = fs.lstatSync(target, { throwIfNoEntry: false });
  if (found === undefined) return undefined;
  if (found.isDirectory()) return "dir";
  if (found.isSymbolicLink()) return "symlink";
  return found.isFile() ? "file" : "other";
}
