import { randomUUID } from "node:crypto";
import { chmod, mkdir, open, readdir, readFile, rename } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type Static, Type } from "typebox";
import { Value } from "typebox/value";
import { BadRequest } from "../../ports/errors.ts";
import type { RuntimeId } from "../../ports/ids.ts";
import { orMissing } from "./or-missing.ts";

/** What is needed to find a runtime again, and to undo it. */
export const RuntimeRecord = Type.Object({
  version: Type.Literal(1),
  instanceId: Type.String(),
  runtimeId: Type.String(),
  sandboxId: Type.String(),
  /** The agent's token: without it nobody can command the runtime. */
  token: Type.String(),
  image: Type.String(),
  createdAt: Type.String(),
  /** The proot process; absent until it was started. */
  process: Type.Optional(
    Type.Object({ pid: Type.Integer(), startTime: Type.String(), bootId: Type.String() }),
  ),
});
export type RuntimeRecord = Static<typeof RuntimeRecord>;

const recordName = "runtime.json";
/** Only this much of a console's end is looked at. */
const consoleTailBytes = 256 * 1024;

/** The folders of runtimes, `<dataDir>/runtimes/proot/<runtimeId>`: record, console, socket and root file system. */
export class RuntimeRecords {
  readonly root: string;

  constructor(options: { dataDir: string }) {
    this.root = join(options.dataDir, "runtimes", "proot");
  }

  /** @throws BadRequest for an id that is not fit to name a folder. */
  folder(runtimeId: RuntimeId): string {
    if (!isRuntimeId(runtimeId)) {
      throw new BadRequest(`runtime id ${JSON.stringify(runtimeId)} cannot name a folder`);
    }
    return join(this.root, runtimeId);
  }

  rootfs(runtimeId: RuntimeId): string {
    return join(this.folder(runtimeId), "rootfs");
  }
  socket(runtimeId: RuntimeId): string {
    return join(this.folder(runtimeId), "agent.sock");
  }
  console(runtimeId: RuntimeId): string {
    return join(this.folder(runtimeId), "console.log");
  }

  /** Writes the record down for good, before anything it describes exists. */
  async save(record: RuntimeRecord, runtimeId: RuntimeId): Promise<void> {
    const folder = this.folder(runtimeId);
    // Users of a rooted sandbox must be able to pass; what is theirs not to read has rights of its own.
    await mkdir(folder, { recursive: true, mode: 0o711 });
    for (const path of [this.root, dirname(this.root)]) await chmod(path, 0o711);
    const draft = join(folder, `.${recordName}.${randomUUID()}`);
    const file = await open(draft, "wx", 0o600);
    try {
      await file.writeFile(JSON.stringify(record));
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(draft, join(folder, recordName));
    for (const path of [folder, dirname(folder)]) await syncFolder(path);
  }

  /** @returns undefined when there is no whole record. */
  async read(runtimeId: RuntimeId): Promise<RuntimeRecord | undefined> {
    const text = await orMissing(readFile(join(this.folder(runtimeId), recordName), "utf8"), undefined);
    if (text === undefined) return undefined;
    const record: unknown = JSON.parse(text);
    return Value.Check(RuntimeRecord, record) ? record : undefined;
  }

  /** Ids of every folder, whether or not it holds a record. */
  async list(): Promise<RuntimeId[]> {
    const names: readonly string[] = await orMissing(readdir(this.root), []);
    return names.filter(isRuntimeId);
  }

  /** The last lines of the console, newest last. @returns undefined when the runtime is not there. */
  async consoleLines(runtimeId: RuntimeId, lines: number): Promise<string[] | undefined> {
    const file = await orMissing(open(this.console(runtimeId), "r"), undefined);
    if (file === undefined) return undefined;
    try {
      const { size } = await file.stat();
      const length = Math.min(size, consoleTailBytes);
      const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, size - length);
      const found = buffer.toString("utf8", 0, bytesRead).split("\n");
      if (found.at(-1) === "") found.pop();
      if (size > length) found.shift();
      return lines > 0 ? found.slice(-lines) : [];
    } finally {
      await file.close();
    }
  }
}

function isRuntimeId(name: string): name is RuntimeId {
  return /^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$/.test(name);
}

async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
