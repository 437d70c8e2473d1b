import { randomInt } from "node:crypto";
import { chmod, chown } from "node:fs/promises";
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

/** Group ids that neither distributions, nor systemd, nor the usual ranges of subordinate ids give to anybody. */
const [firstGroup, endOfGroups] = [0x7000_0000, 0x7fff_ffff];

/**
 * The folders of runtimes, `<dataDir>/runtimes/proot/<runtimeId>`: record, console, socket and root file system. Closed to the
 * machine's other users, who could read the command line that names them.
 */
export class RuntimeRecords extends RecordFolders<typeof RuntimeRecord> {
  /** @param options.asRoot whether commands run as other users than the service, who must get to the folders. */
  constructor(options: { dataDir: string; asRoot: boolean }) {
    const rootMode = options.asRoot ? 0o711 : 0o700;
    super({ ...options, provider: "proot", schema: RuntimeRecord, mode: 0o700, rootMode });
  }

  rootfs(runtimeId: RuntimeId): string {
    return join(this.folder(runtimeId), "rootfs");
  }
  socket(runtimeId: RuntimeId): string {
    return join(this.folder(runtimeId), "agent.sock");
  }

  /**
   * Lets a group of its own pass through a runtime's folder.
   * @returns the group; undefined where the kernel knows no such group here, as in a user namespace: then everybody passes.
   */
  async openToGroup(runtimeId: RuntimeId): Promise<number | undefined> {
    const group = randomInt(firstGroup, endOfGroups);
    const folder = this.folder(runtimeId);
    try {
      await chown(folder, 0, group);
    } catch (error) {
      const code = error instanceof Error && "code" in error ? error.code : undefined;
      if (code !== "EINVAL" && code !== "EPERM") throw error;
      await chmod(folder, 0o711);
      return undefined;
    }
    await chmod(folder, 0o710);
    return group;
  }
}
