import { readdirSync } from "node:fs";
import { readdir, readFile, stat } from "node:fs/promises";
import { basename, join } from "node:path";
import { type Static, Type } from "typebox";
import { orMissing } from "../../platform/missing.ts";
import { bootId } from "../../platform/process-identity.ts";
import { BadRequest, type RuntimeId } from "../../ports/index.ts";
import { isPrepared } from "../prepared/index.ts";
import { consoleLines, HeldFolder, parseRecord, UnreadableRecord } from "../runtime-records/index.ts";
import { RuntimeRecord } from "./runtime-record.ts";
import { type UsualMemory, usualMemoryIn } from "./usual-memory.ts";

/** Who PID 1 of a sandbox is, as the launcher wrote it down. */
const ProcessRecord = Type.Object({
  pid: Type.Integer(),
  start_time: Type.Integer(),
  boot_id: Type.String(),
});

/** Runtimes that only check() makes. */
export const probePrefix = "probe-";

/** Whether a runtime is nobody's sandbox. */
export function isOurs(runtimeId: string): boolean {
  return runtimeId.startsWith(probePrefix) || isPrepared(runtimeId);
}

/** `<dataDir>/runtimes/native`: a directory for each runtime, all that is needed to find it again. */
export class RuntimeDirectories implements AsyncDisposable {
  readonly root: string;
  readonly trash: string;
  readonly #held: HeldFolder;

  constructor(options: { dataDir: string }) {
    this.root = join(options.dataDir, "runtimes", "native");
    this.trash = join(this.root, ".trash");
    this.#held = new HeldFolder(this.root);
  }

  /** @returns false when there never were any. @throws Unavailable when those that were there are out of sight. */
  inSight(): Promise<boolean> {
    return this.#held.inSight();
  }

  /** Beside the runtimes, and written only while they are in sight. */
  usualMemory(what: "memory" | "kernel-memory"): UsualMemory {
    const { read, write } = usualMemoryIn(join(this.root, `.usual-${what}`));
    return {
      read,
      write: async (mb) => {
        if (!(await this.inSight())) throw new Error("there are no runtimes yet");
        await write(mb);
      },
    };
  }

  /** @throws BadRequest for an id that is not fit to name a directory. */
  path(runtimeId: string): string {
    if (!/^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$/.test(runtimeId)) {
      throw new BadRequest(`runtime id ${JSON.stringify(runtimeId)} cannot name a directory`);
    }
    return join(this.root, runtimeId);
  }

  /** Where the agent listens, also while the directories are out of sight; good in this process alone. */
  async socket(runtimeId: RuntimeId): Promise<string> {
    return join(await this.#held.steadyPath(), basename(this.path(runtimeId)), "agent.sock");
  }

  /** Where the relay of its network listens; as `socket`. */
  async networkSocket(runtimeId: RuntimeId): Promise<string> {
    return join(await this.#held.steadyPath(), basename(this.path(runtimeId)), "network.sock");
  }

  /** Whether a network was made for it. */
  async hasNetwork(runtimeId: RuntimeId): Promise<boolean> {
    return (await orMissing(stat(join(this.path(runtimeId), "network.json")), undefined)) !== undefined;
  }

  /** @throws Unavailable when those that were there are out of sight. */
  async list(): Promise<RuntimeId[]> {
    if (!(await this.inSight())) return [];
    const names = await readdir(this.root);
    return names.filter((name) => !name.startsWith(".")) as RuntimeId[];
  }

  async listTrash(): Promise<string[]> {
    const names = await orMissing(readdir(this.trash), []);
    return names.map((name) => join(this.trash, name));
  }

  /** For who must know what is there before something else is put there. */
  listTrashNow(): string[] {
    try {
      return readdirSync(this.trash).map((name) => join(this.trash, name));
    } catch {
      // Trash that cannot be read is looked at again by the next start.
      return [];
    }
  }

  /** @returns undefined when the launch did not get that far. @throws UnreadableRecord */
  async record(runtimeId: RuntimeId): Promise<RuntimeRecord | undefined> {
    const text = await this.#text(runtimeId, "runtime.json");
    return text === undefined || text === "" ? undefined : parseRecord(RuntimeRecord, text, runtimeId);
  }

  /**
   * @returns undefined where there is none. Files get their names once they are whole: one that is empty was left by a machine that lost
   *   its power.
   */
  #text(runtimeId: RuntimeId, name: string): Promise<string | undefined> {
    return orMissing(readFile(join(this.path(runtimeId), name), "utf8"), undefined);
  }

  /** For undoing, which goes on without a record. @returns undefined when there is none that can be read. */
  async recordIfWhole(runtimeId: RuntimeId): Promise<RuntimeRecord | undefined> {
    try {
      return await this.record(runtimeId);
    } catch (error) {
      if (error instanceof UnreadableRecord) return undefined;
      throw error;
    }
  }

  /**
   * Whether the sandbox's first process runs: the same boot, pid and start time.
   * @returns undefined when its process was not written down: a launch did not get that far, or the file was lost.
   * @throws UnreadableRecord
   */
  async isAlive(runtimeId: RuntimeId): Promise<boolean | undefined> {
    const found = await this.#process(runtimeId);
    return found === undefined ? undefined : found !== "gone" && this.#lives(found);
  }

  /** @returns the pid of the sandbox's first process, while that runs. @throws UnreadableRecord */
  async livingProcess(runtimeId: RuntimeId): Promise<number | undefined> {
    const found = await this.#process(runtimeId);
    if (found === undefined || found === "gone") return undefined;
    return (await this.#lives(found)) ? found.pid : undefined;
  }

  /** @returns "gone" for that of a machine that lost its power. */
  async #process(runtimeId: RuntimeId): Promise<Static<typeof ProcessRecord> | "gone" | undefined> {
    const text = await this.#text(runtimeId, "process.json");
    if (text === "") return "gone";
    return text === undefined ? undefined : parseRecord(ProcessRecord, text, runtimeId);
  }

  async #lives(found: Static<typeof ProcessRecord>): Promise<boolean> {
    if (found.boot_id !== (await bootId())) return false;
    const stat = await orMissing(readFile(`/proc/${found.pid}/stat`, "utf8"), "");
    // Fields after the name, which may hold blanks and brackets: the state is the first, the start time the twentieth.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return Number(fields[19]) === found.start_time && fields[0] !== "Z" && fields[0] !== "X";
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#held[Symbol.asyncDispose]();
  }

  /** The last lines of the console, newest last. */
  consoleLines(runtimeId: RuntimeId, lines: number): Promise<string[] | undefined> {
    return consoleLines(this.path(runtimeId), lines);
  }
}
