import { randomUUID } from "node:crypto";
import { existsSync, statSync } from "node:fs";
import { copyFile, mkdir, open, realpath, rename, rm } from "node:fs/promises";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import type { Config } from "./config/config.ts";
import { freeBytes } from "./platform/free-space.ts";
import { noteBackup } from "./platform/last-backup.ts";
import { messageOf } from "./platform/message-of.ts";
import { BadRequest, Conflict, NotFound } from "./ports/index.ts";
import { damagedDatabase, isDamage, isDiskFull, isOfSqlite } from "./stores/sqlite/disk-errors.ts";

const busyTimeoutMs = 10_000;
const fullDisk = new Set(["ENOSPC", "EDQUOT"]);

/**
 * Copies what a data directory cannot make again, of a service that runs or not, into a new folder: the database as it is
 * at one instant, and which installation this is. The folder is there once it is whole and on the disk.
 * When that was is left in the data directory, for metrics and `alcove doctor --running`.
 * @throws NotFound without a database, or a folder to make it in; Conflict when it is there already; BadRequest for one in
 *  the data directory; else an error that names the disk that is full, or the file that is damaged.
 * @returns what keeps its time from being left; undefined when it was.
 */
export async function backup(options: {
  config: Config;
  folder: string;
  now?: Date;
}): Promise<{ notNoted: string | undefined }> {
  const { config, folder, now = new Date() } = options;
  const { dataDir, database } = config;
  if (!existsSync(database.path)) throw new NotFound(`there is no database ${database.path}`);
  const target = path.resolve(folder);
  if (existsSync(target))
    throw new Conflict(`${target} is there already: a backup is a new folder, and replaces nothing`);
  await refusePlace(target, dataDir);
  try {
    await copyTo(target, { database: database.path, dataDir });
  } catch (error) {
    throw told(error, { database: database.path, target });
  }
  const notNoted = await noteBackup(dataDir, now).then(() => undefined, messageOf);
  return { notNoted };
}

async function copyTo(target: string, from: { database: string; dataDir: string }): Promise<void> {
  const { database, dataDir } = from;
  const draft = `${target}.${randomUUID().slice(0, 8)}.partial`;
  await mkdir(draft, { mode: 0o700 });
  try {
    const copy = path.join(draft, "alcove.db");
    // Made before, because it holds the hashes of keys: SQLite would make it as the umask has it.
    await (await open(copy, "wx", 0o600)).close();
    const db = new DatabaseSync(database, { readOnly: true, timeout: busyTimeoutMs });
    try {
      // A snapshot: who writes meanwhile is not held up, and what is written is not in it.
      db.prepare("VACUUM INTO ?").run(copy);
    } finally {
      db.close();
    }
    await onDisk(copy);
    const identity = path.join(dataDir, "installation.json");
    if (existsSync(identity)) {
      await copyFile(identity, path.join(draft, "installation.json"));
      await onDisk(path.join(draft, "installation.json"));
    }
    await onDisk(draft);
    await rename(draft, target);
    await onDisk(path.dirname(target));
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
}

/** @returns an error that says which of the two it was; where only SQLite would know, one that names both. */
function told(error: unknown, { database, target }: { database: string; target: string }): unknown {
  const full =
    isDiskFull(error) || (error instanceof Error && "code" in error && fullDisk.has(String(error.code)));
  if (full) {
    const [needed, free] = [
      sizeOf(database) + sizeOf(`${database}-wal`),
      freeBytes(path.dirname(target)),
    ].map(mib);
    return new Error(
      `the disk of ${path.dirname(target)} is full: a backup of ${database} takes up to ${needed} MiB, and ${free} MiB ` +
        "are free there; free space, or name a folder on another disk",
      { cause: error },
    );
  }
  if (isDamage(error)) return damagedDatabase(database, error);
  if (!isOfSqlite(error)) return error;
  return new Error(`${database} cannot be copied to ${target}: ${messageOf(error)}`, { cause: error });
}

function sizeOf(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}

function mib(bytes: number): string {
  return (bytes / 1_048_576).toFixed(1);
}

async function refusePlace(target: string, dataDir: string): Promise<void> {
  const parent = path.dirname(target);
  if (!existsSync(parent))
    throw new NotFound(`there is no folder ${parent} to make the backup in: install -d -m 0700 ${parent}`);
  const below = path.relative(await realpath(dataDir), await realpath(parent));
  if (below !== ".." && !below.startsWith(`..${path.sep}`) && !path.isAbsolute(below))
    throw new BadRequest(
      `${target} is in the data directory ${dataDir}, which is what a backup is there for, and "alcove purge --remove" takes ` +
        "away: name a folder elsewhere, best on another disk",
    );
}

async function onDisk(file: string): Promise<void> {
  await using handle = await open(file, "r");
  await handle.sync();
}
