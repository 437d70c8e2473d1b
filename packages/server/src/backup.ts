import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { copyFile, mkdir, open, rename, rm } from "node:fs/promises";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import type { Config } from "./config/config.ts";
import { Conflict, NotFound } from "./ports/index.ts";

const busyTimeoutMs = 10_000;

/**
 * Copies what a data directory cannot make again, of a service that runs or not, into a new folder: the database as it is
 * at one instant, and which installation this is. The folder is there once it is whole and on the disk.
 * @throws NotFound without a database; Conflict when the folder is there already.
 */
export async function backup({ config, folder }: { config: Config; folder: string }): Promise<void> {
  const { dataDir, database } = config;
  if (!existsSync(database.path)) throw new NotFound(`there is no database ${database.path}`);
  const target = path.resolve(folder);
  if (existsSync(target))
    throw new Conflict(`${target} is there already: a backup is a new folder, and replaces nothing`);
  const draft = `${target}.${randomUUID().slice(0, 8)}.partial`;
  await mkdir(draft, { mode: 0o700 });
  try {
    const copy = path.join(draft, "alcove.db");
    // Made before, because it holds the hashes of keys: SQLite would make it as the umask has it.
    await (await open(copy, "wx", 0o600)).close();
    const db = new DatabaseSync(database.path, { readOnly: true, timeout: busyTimeoutMs });
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

async function onDisk(file: string): Promise<void> {
  await using handle = await open(file, "r");
  await handle.sync();
}
