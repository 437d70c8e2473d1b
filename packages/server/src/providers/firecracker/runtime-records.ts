import { rm } from "node:fs/promises";
import { type Static, Type } from "typebox";
import { commonRecord, RecordFolders } from "../runtime-records/index.ts";

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

  async remove(runtimeId: string): Promise<void> {
    await rm(this.folder(runtimeId), { recursive: true, force: true });
  }
}
