import { chmod, chown, mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { type Static, Type } from "typebox";
import { ProviderError, type RuntimeId } from "../../ports/index.ts";
import { commonRecord, RecordFolders } from "../runtime-records/index.ts";
import { socketFolderUid } from "./container-spec.ts";

/** What is known of a runtime before and beyond its container. */
export const RuntimeRecord = Type.Object({
  ...commonRecord,
  transport: Type.Enum(["socket", "stdio"]),
  /** The address of the engine it was made at; earlier releases wrote none. */
  engine: Type.Optional(Type.String()),
  /** The socket the agent made at its start; anything else under its name was put there later. */
  socket: Type.Optional(Type.Object({ device: Type.String(), inode: Type.String() })),
});
export type RuntimeRecord = Static<typeof RuntimeRecord>;

/** The folders of runtimes below `<dataDir>/runtimes/docker`, one each. */
export class RuntimeRecords extends RecordFolders<typeof RuntimeRecord> {
  constructor(options: { dataDir: string }) {
    super({ ...options, provider: "docker", schema: RuntimeRecord, mode: 0o700 });
  }

  /** The host folder the agent of a runtime puts its socket into. */
  socketFolder(runtimeId: RuntimeId): string {
    return join(this.folder(runtimeId), "sock");
  }

  /** Makes the folder for the socket, closed to everything that can run in the container but the agent. */
  async makeSocketFolder(runtimeId: RuntimeId): Promise<string> {
    const folder = this.socketFolder(runtimeId);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    await chmod(folder, 0o700);
    // A service that is not root owns the folder itself; its user is then kept out of by the agent's token alone.
    if (process.getuid?.() === 0)
      await chown(folder, socketFolderUid, socketFolderUid).catch((error) => {
        const what = `the folder of the agent's socket cannot be given to user ${socketFolderUid}`;
        throw orMissingRight(error, what, "CHOWN");
      });
    return folder;
  }

  async remove(runtimeId: RuntimeId): Promise<void> {
    await rm(this.folder(runtimeId), { recursive: true, force: true }).catch((error) => {
      throw orMissingRight(error, `the folder of runtime ${runtimeId} cannot be removed`, "DAC_OVERRIDE");
    });
  }
}

/**
 * Says of what the kernel refused to root which right is missing, and the way out.
 * @returns anything else as it is.
 */
function orMissingRight(error: unknown, what: string, right: "CHOWN" | "DAC_OVERRIDE"): unknown {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  if (code !== "EPERM" && code !== "EACCES") return error;
  const wayOut =
    process.getuid?.() === 0
      ? `root needs the right ${right} for that, which a container has with --cap-add ${right} ` +
        "(docs/operations/container.md) and a unit whose CapabilityBoundingSet leaves it"
      : "it belongs to another user: run this as the user of the service, or as root";
  return new ProviderError(`${what} (${code}): ${wayOut}`, { cause: error });
}
