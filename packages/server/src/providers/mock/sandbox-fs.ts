import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";
import type { InMemoryFs } from "just-bash";
import type { FileChange } from "../../ports/sandbox-operations.ts";
import { type FileSystemCall, fileSystemCalls } from "./shell-messages.ts";

export interface Owner {
  uid: number;
  gid: number;
}

/**
 * Loaded for the first simulated file system: most services simulate nothing, and keep 740 KB of text less without it. The entry of its
 * modules, which its shells have too: that of `require` is one file of three times the size.
 */
const loadShell = (): typeof import("just-bash") =>
  createRequire(import.meta.url)(fileURLToPath(import.meta.resolve("just-bash")));
const maxEntries = 20_000;
const extraCommands = ["id", "whoami", "uname", "nproc", "sync", "yes"];
const directories = ["/dev", "/etc", "/home", "/proc", "/root", "/tmp", "/usr/bin", "/var"];
const passwd =
  "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
const knownUsers = new Map<string, Owner>([
  ["root", { uid: 0, gid: 0 }],
  ["user", { uid: 1000, gid: 1000 }],
  ["nobody", { uid: 65534, gid: 65534 }],
]);

/** @returns the ids of a name of the simulated /etc/passwd or of `uid[:gid]`; undefined for anybody else. */
export function findUser(user: string): (Owner & { name: string }) | undefined {
  const known = knownUsers.get(user);
  if (known !== undefined) return { ...known, name: user };
  const numbers = /^(\d{1,9})(?::(\d{1,9}))?$/.exec(user);
  if (numbers === null) return undefined;
  const uid = Number(numbers[1]);
  const name = [...knownUsers].find(([, owner]) => owner.uid === uid)?.[0] ?? String(uid);
  return { uid, gid: Number(numbers[2] ?? uid), name };
}

/** Paths a change event may name, by the argument that holds them. */
const changes: Partial<Record<FileSystemCall, { argument: number; type: FileChange["type"] }[]>> = {
  writeFile: [{ argument: 0, type: "write" }],
  appendFile: [{ argument: 0, type: "write" }],
  mkdir: [{ argument: 0, type: "create" }],
  rm: [{ argument: 0, type: "remove" }],
  cp: [{ argument: 1, type: "create" }],
  mv: [
    { argument: 0, type: "rename" },
    { argument: 1, type: "rename" },
  ],
  chmod: [{ argument: 0, type: "chmod" }],
  symlink: [{ argument: 1, type: "create" }],
  link: [{ argument: 1, type: "create" }],
};

/** The in-memory file system of one sandbox: bounded in bytes and entries, telling listeners what changes. */
export class SandboxFs {
  readonly memory: InMemoryFs;
  readonly maxBytes: number;
  readonly #owners = new Map<string, Owner>();
  readonly #listeners = new Set<(change: FileChange) => void>();
  /** Never below the true count; counted anew when it reaches the bound. */
  #entriesAtMost: number;

  constructor(options: { maxBytes: number; workdir: string; owner: Owner }) {
    this.maxBytes = options.maxBytes;
    const { getCommandNames, InMemoryFs } = loadShell();
    this.memory = new InMemoryFs(undefined, { maxTotalBytes: options.maxBytes });
    for (const directory of directories) this.memory.mkdirSync(directory, { recursive: true });
    this.memory.writeFileSync("/etc/passwd", passwd);
    this.memory.writeFileSync("/etc/hostname", "mock\n");
    for (const name of [...getCommandNames(), ...extraCommands])
      this.memory.writeFileSync(`/bin/${name}`, "", undefined, { mode: 0o755 });
    this.memory.mkdirSync(options.workdir, { recursive: true });
    this.setOwner(options.workdir, options.owner);
    this.#entriesAtMost = this.memory.getAllPaths().length;
  }

  /** A call of the shell or of the files API. @throws Error with an errno name in front, as the file system itself does. */
  async call(op: FileSystemCall, args: readonly unknown[]): Promise<unknown> {
    if (!fileSystemCalls.includes(op)) throw new Error(`ENOSYS: ${String(op)}`);
    const changed = changes[op];
    if (changed === undefined) return await this.#invoke(op, args);
    this.#checkSpace(op);
    const target = String(args[changed.length - 1 + (changed[0]?.argument ?? 0)]);
    const isNew = (op === "writeFile" || op === "appendFile") && !(await this.memory.exists(target));
    const value = await this.#invoke(op, args);
    if (op === "rm") this.#forgetOwners(path.posix.normalize(String(args[0])));
    if (op === "mv") this.#moveOwners(String(args[0]), String(args[1]));
    for (const { argument, type } of changed)
      this.#tell({ type: isNew ? "create" : type, path: path.posix.normalize(String(args[argument])) });
    return value;
  }

  ownerOf(filePath: string): Owner {
    return this.#owners.get(filePath) ?? { uid: 0, gid: 0 };
  }
  setOwner(filePath: string, owner: Owner): void {
    if (owner.uid === 0 && owner.gid === 0) this.#owners.delete(filePath);
    else this.#owners.set(filePath, owner);
  }

  onChange(listener: (change: FileChange) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Bytes of all files. */
  async usedBytes(): Promise<number> {
    let total = 0;
    for (const each of this.memory.getAllPaths()) total += (await this.memory.lstat(each)).size;
    return total;
  }

  async #invoke(op: FileSystemCall, args: readonly unknown[]): Promise<unknown> {
    const method = this.memory[op] as (...args: readonly unknown[]) => Promise<unknown>;
    return await method.apply(this.memory, [...args]);
  }

  #checkSpace(op: FileSystemCall): void {
    if (op === "rm" || op === "chmod" || op === "mv") return;
    this.#entriesAtMost += op === "cp" ? maxEntries : 1;
    if (this.#entriesAtMost <= maxEntries) return;
    this.#entriesAtMost = this.memory.getAllPaths().length + 1;
    if (this.#entriesAtMost > maxEntries)
      throw new Error(`ENOSPC: no space left on device, a mock sandbox holds at most ${maxEntries} files`);
  }

  #forgetOwners(removed: string): void {
    for (const each of this.#owners.keys())
      if (each === removed || each.startsWith(`${removed}/`)) this.#owners.delete(each);
  }

  #moveOwners(from: string, to: string): void {
    for (const [each, owner] of [...this.#owners]) {
      if (each !== from && !each.startsWith(`${from}/`)) continue;
      this.#owners.delete(each);
      this.#owners.set(to + each.slice(from.length), owner);
    }
  }

  #tell(change: FileChange): void {
    for (const listener of this.#listeners) listener(change);
  }
}
