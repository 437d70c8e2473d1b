import { rm } from "node:fs/promises";
import { type Static, Type } from "typebox";
import type { RuntimeId } from "../../ports/index.ts";
import { commonRecord, RecordFolders } from "../runtime-records/index.ts";

/** Lines of a console that an error or a log line shows, and how long each may be. */
const shownLines = 5;
const shownLineLength = 200;

/** What is needed to find a machine again, and to undo it. */
export const RuntimeRecord = Type.Object({
  ...commonRecord,
  /** The machine's own, with its drives and sockets; earlier releases wrote none. */
  folder: Type.Optional(Type.String()),
  /** The name of the shared root file system it reads. */
  rootfs: Type.Optional(Type.String()),
  /** The host's end of its network. */
  tap: Type.Optional(Type.String()),
  /** Where its process is confined: below the machine's folder, as this user. */
  jail: Type.Optional(Type.Object({ inside: Type.String(), uid: Type.Integer() })),
  /** Firecracker's process; absent until it was started. */
  process: Type.Optional(
    Type.Object({ pid: Type.Integer(), startTime: Type.String(), bootId: Type.String() }),
  ),
});
export type RuntimeRecord = Static<typeof RuntimeRecord>;

/** The folders of runtimes, `<dataDir>/runtimes/firecracker/<runtimeId>`: record and console. */
export class RuntimeRecords extends RecordFolders<typeof RuntimeRecord> {
  constructor(options: { dataDir: string }) {
    super({ ...options, provider: "firecracker", schema: RuntimeRecord, mode: 0o700 });
  }

  /** What of each machine that is there, running or not, its record says it was lent. */
  async lent<T>(of: (record: RuntimeRecord) => T | undefined): Promise<ReadonlyMap<RuntimeId, T>> {
    const lent = new Map<RuntimeId, T>();
    for (const runtimeId of await this.list()) {
      const record = await this.readIfWhole(runtimeId);
      const thing = record === undefined ? undefined : of(record);
      if (thing !== undefined) lent.set(runtimeId, thing);
    }
    return lent;
  }

  /** The last that a machine's console says, on one line. */
  async lastWords(runtimeId: RuntimeId): Promise<string> {
    const lines = (await this.consoleLines(runtimeId, shownLines)) ?? [];
    return lines.map((line) => line.slice(0, shownLineLength)).join(" | ") || "nothing";
  }

  async remove(runtimeId: string): Promise<void> {
    await rm(this.folder(runtimeId), { recursive: true, force: true });
  }
}
