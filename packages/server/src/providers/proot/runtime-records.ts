import { join } from "node:path";
import { type Static, Type } from "typebox";
import type { RuntimeId } from "../../ports/ids.ts";
import { commonRecord, RecordFolders } from "../runtime-records/index.ts";

/** What is needed to find a runtime again, and to undo it. */
export const RuntimeRecord = Type.Object({
  ...commonRecord,
  /** The proot process; absent until it was started. */
  process: Type.Optional(
    Type.Object({ pid: Type.Integer(), startTime: Type.String(), bootId: Type.String() }),
  ),
});
export type RuntimeRecord = Static<typeof RuntimeRecord>;

/**
 * The folders of runtimes, `<dataDir>/runtimes/proot/<runtimeId>`: record, console, socket and root file system. Users
 * of a rooted sandbox must be able to pass; what is theirs not to read has rights of its own.
 */
export class RuntimeRecords extends RecordFolders<typeof RuntimeRecord> {
  constructor(options: { dataDir: string }) {
    super({ ...options, provider: "proot", schema: RuntimeRecord, mode: 0o711 });
  }

  rootfs(runtimeId: RuntimeId): string {
    return join(this.folder(runtimeId), "rootfs");
  }
  socket(runtimeId: RuntimeId): string {
    return join(this.folder(runtimeId), "agent.sock");
  }
}
