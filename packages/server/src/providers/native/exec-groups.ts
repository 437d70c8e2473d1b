import { access, mkdir, readdir, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import {
  Conflict,
  DomainError,
  type ExecId,
  ProviderError,
  RuntimeGone,
  Unavailable,
} from "../../ports/index.ts";
import type { CommandGroups } from "../agent/index.ts";
import type { CgroupSpec, LendSpec } from "../launcher/index.ts";

/** How often groups whose commands may have ended are tried to be removed. */
const sweepMs = 1_000;
/** No other group beside those of single commands is called so. */
const namePattern = /^ex-[a-z0-9]+$/;

/**
 * Control groups of single commands of one runtime, inside the group of all its commands: a command with a limit of its own
 * for memory or processes runs in one. They are made and removed from outside; what this process does not get to remove
 * goes when the next one adopts the runtime, or with the runtime.
 */
export class ExecGroups implements CommandGroups, Disposable {
  readonly #cgroup: CgroupSpec;
  readonly #lend: (spec: Omit<LendSpec, "dir" | "token">) => Promise<void>;
  /** Lent, or about to be, to starts that have not been answered. */
  readonly #starting = new Set<string>();
  readonly #made = new Set<string>();
  /** Under way: whoever wants such a name waits, or what it makes is removed again. */
  readonly #removals = new Map<string, Promise<boolean>>();
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: {
    cgroup: CgroupSpec;
    lend: (spec: Omit<LendSpec, "dir" | "token">) => Promise<void>;
  }) {
    this.#cgroup = options.cgroup;
    this.#lend = options.lend;
  }

  async lend(execId: ExecId, limits: { memoryMb?: number; pids?: number }): Promise<() => void> {
    if (!namePattern.test(execId)) throw new ProviderError(`${execId} cannot name a control group`);
    const taken = () => new Conflict(`exec "${execId}" exists already in this sandbox`);
    if (this.#starting.has(execId)) throw taken();
    const forget = () => {
      this.#starting.delete(execId);
      this.#sweepLater();
    };
    this.#starting.add(execId);
    try {
      if (this.#made.has(execId) && !(await this.#remove(execId))) throw taken();
      this.#made.add(execId);
      const files = await this.#make(execId, limits);
      await this.#lend({ exec_id: execId, ...files });
    } catch (error) {
      forget();
      throw unlent(error);
    }
    return forget;
  }

  /** Takes over what a process before this one made. */
  async adopt(): Promise<void> {
    for (const parent of this.#parents()) {
      const names = await readdir(parent).catch(() => []);
      for (const name of names) if (namePattern.test(name)) this.#made.add(name);
    }
    if (this.#made.size > 0) this.#sweepLater();
  }

  [Symbol.dispose](): void {
    this.#closed = true;
    clearTimeout(this.#timer);
  }

  async #make(
    execId: string,
    { memoryMb, pids }: { memoryMb?: number; pids?: number },
  ): Promise<Pick<LendSpec, "join" | "kills" | "met">> {
    const memory = memoryMb === undefined ? undefined : String(memoryMb * 1024 * 1024);
    const files: Pick<LendSpec, "join" | "kills" | "met"> = { join: [], kills: [], met: [] };
    if (this.#cgroup.version === 2) {
      const group = await this.#makeIn("unified", execId);
      if (memory !== undefined) {
        await writeFile(join(group, "memory.max"), memory);
        await writeIfThere(join(group, "memory.swap.max"), "0");
        files.met.push(join(group, "memory.events"));
      }
      if (pids !== undefined) await writeFile(join(group, "pids.max"), String(pids));
      files.join.push(join(group, "cgroup.procs"));
      files.kills.push(join(group, "memory.events"));
      return files;
    }
    if (memory !== undefined) {
      const group = await this.#makeIn("memory", execId);
      await writeFile(join(group, "memory.limit_in_bytes"), memory);
      // Absent where the kernel does not account swap.
      await writeIfThere(join(group, "memory.memsw.limit_in_bytes"), memory);
      files.met.push(join(group, "memory.max_usage_in_bytes"), join(group, "memory.limit_in_bytes"));
      files.join.push(join(group, "tasks"));
      files.kills.push(join(group, "memory.oom_control"));
    }
    if (pids !== undefined) {
      const group = await this.#makeIn("pids", execId);
      await writeFile(join(group, "pids.max"), String(pids));
      files.join.push(join(group, "tasks"));
    }
    return files;
  }

  async #makeIn(controller: string, execId: string): Promise<string> {
    const dir = this.#cgroup.dirs.find((found) => found.controller === controller);
    if (dir === undefined) throw new Unavailable(`this sandbox has no control group for ${controller}`);
    const group = join(dir.path, "execs", execId);
    await mkdir(group);
    return group;
  }

  #parents(): string[] {
    return this.#cgroup.dirs
      .filter(({ controller }) => ["memory", "pids", "unified"].includes(controller))
      .map(({ path }) => join(path, "execs"));
  }

  #sweepLater(): void {
    if (this.#closed) return;
    this.#timer ??= setTimeout(() => {
      void this.#sweep().finally(() => {
        this.#timer = undefined;
        if (this.#made.size > 0) this.#sweepLater();
      });
    }, sweepMs).unref();
  }

  async #sweep(): Promise<void> {
    for (const name of [...this.#made]) if (!this.#starting.has(name)) await this.#remove(name);
  }

  /** @returns false while it is used. */
  #remove(name: string): Promise<boolean> {
    const removal =
      this.#removals.get(name) ?? this.#removeNow(name).finally(() => this.#removals.delete(name));
    this.#removals.set(name, removal);
    return removal;
  }

  async #removeNow(name: string): Promise<boolean> {
    const gone = await Promise.all(this.#parents().map((parent) => removed(join(parent, name))));
    if (gone.includes(false)) return false;
    this.#made.delete(name);
    return true;
  }
}

/** What the caller is told of a group that could not be made or lent. */
function unlent(error: unknown): unknown {
  if (error instanceof DomainError) return error;
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  if (code === "ENOENT")
    return new RuntimeGone("the control groups of this sandbox are gone: it ends, or somebody removed them", {
      cause: error,
    });
  const why = error instanceof Error ? error.message : String(error);
  return new Unavailable(`the command gets no control group for its limits: ${why}`, {
    cause: error,
    retryAfterS: 5,
  });
}

/** @returns false while processes are in it. */
async function removed(group: string): Promise<boolean> {
  try {
    await rmdir(group);
    return true;
  } catch (error) {
    return error instanceof Error && "code" in error && error.code === "ENOENT";
  }
}

/** For files that only some kernels have. */
async function writeIfThere(path: string, text: string): Promise<void> {
  try {
    await access(path);
  } catch {
    return;
  }
  await writeFile(path, text);
}
