import { randomUUID } from "node:crypto";
import { chmod, chown, mkdir, open, readdir, readFile, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type Static, Type } from "typebox";
import { Value } from "typebox/value";
import { BadRequest, type RuntimeId } from "../../ports/index.ts";
import { socketFolderUid } from "./container-spec.ts";

/** What is known of a runtime before and beyond its container. */
export const RuntimeRecord = Type.Object({
  version: Type.Literal(1),
  instanceId: Type.String(),
  runtimeId: Type.String(),
  sandboxId: Type.String(),
  /** The agent's token: without it nobody can command the runtime. */
  token: Type.String(),
  image: Type.String(),
  transport: Type.Enum(["socket", "stdio"]),
  createdAt: Type.String(),
  /** The socket the agent made at its start; anything else under its name was put there later. */
  socket: Type.Optional(Type.Object({ device: Type.String(), inode: Type.String() })),
});
export type RuntimeRecord = Static<typeof RuntimeRecord>;

const recordName = "runtime.json";

/** The folders of runtimes below `<dataDir>/runtimes/docker`, one each. */
export class RuntimeRecords {
  readonly #root: string;

  constructor(options: { dataDir: string }) {
    this.#root = join(options.dataDir, "runtimes", "docker");
  }

  /** @throws BadRequest for an id that is not fit to name a folder and a container. */
  folder(runtimeId: RuntimeId): string {
    if (!/^[a-zA-Z0-9][a-zA-Z0-9_-]{0,100}$/.test(runtimeId)) {
      throw new BadRequest(`runtime id ${JSON.stringify(runtimeId)} cannot name a container`);
    }
    return join(this.#root, runtimeId);
  }

  /** The host folder the agent of a runtime puts its socket into. */
  socketFolder(runtimeId: RuntimeId): string {
    return join(this.folder(runtimeId), "sock");
  }

  /** Writes the record down for good, before anything it describes exists. */
  async save(record: RuntimeRecord): Promise<void> {
    const folder = this.folder(record.runtimeId as RuntimeId);
    const made = await mkdir(folder, { recursive: true, mode: 0o700 });
    const draft = join(folder, `.${recordName}.${randomUUID()}`);
    const file = await open(draft, "wx", 0o600);
    try {
      await file.writeFile(JSON.stringify(record));
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(draft, join(folder, recordName));
    // Both at once: the file system makes one write of them.
    await Promise.all([syncFolder(folder), made === undefined ? undefined : syncFolder(dirname(folder))]);
  }

  /** Makes the folder for the socket, closed to everything that can run in the container but the agent. */
  async makeSocketFolder(runtimeId: RuntimeId): Promise<string> {
    const folder = this.socketFolder(runtimeId);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    await chmod(folder, 0o700);
    // A service that is not root owns the folder itself; its user is then kept out of by the agent's token alone.
    if (process.getuid?.() === 0) await chown(folder, socketFolderUid, socketFolderUid);
    return folder;
  }

  /** @returns undefined when there is no whole record. */
  async read(runtimeId: RuntimeId): Promise<RuntimeRecord | undefined> {
    let text: string;
    try {
      text = await readFile(join(this.folder(runtimeId), recordName), "utf8");
    } catch (error) {
      if (isMissing(error)) return undefined;
      throw error;
    }
    const record: unknown = JSON.parse(text);
    return Value.Check(RuntimeRecord, record) ? record : undefined;
  }

  /** Ids of every folder, whether or not it holds a record. */
  async list(): Promise<RuntimeId[]> {
    try {
      return (await readdir(this.#root)) as RuntimeId[];
    } catch (error) {
      if (isMissing(error)) return [];
      throw error;
    }
  }

  async remove(runtimeId: RuntimeId): Promise<void> {
    await rm(this.folder(runtimeId), { recursive: true, force: true });
  }
}

async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && "code" in error && error.code === "ENOENT";
}
