import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { readdir, rename, rm } from "node:fs/promises";
import path from "node:path";
import type { Config } from "./config/config.ts";
import { lockDataDir } from "./platform/data-dir-lock.ts";
import { DiskReserve } from "./platform/disk-reserve.ts";
import { renewInstallation } from "./platform/installation.ts";
import { randomIds } from "./platform/random-ids.ts";
import { systemClock } from "./platform/system-clock.ts";
import { NotFound } from "./ports/index.ts";
import { SqliteStore } from "./stores/sqlite/sqlite-store.ts";

/** Folders that an earlier restore could not remove begin with this. */
const leftPrefix = ".runtimes-of-the-original-";

/**
 * Makes a copied or restored data directory an installation of its own. What its records name, processes, groups and
 * containers, is the original's and stays untouched; the folders of those runtimes go. Their sandboxes are in state
 * `error` after the next start. Repeatable.
 * @returns what could not be removed.
 * @throws DataDirLocked while a service runs here; NotFound when there is no such directory.
 */
export async function restore({ config }: { config: Config }): Promise<{ left: string[] }> {
  const { dataDir } = config;
  if (!existsSync(dataDir)) throw new NotFound(`there is no data directory ${dataDir}`);
  using _lock = lockDataDir(dataDir);
  await using reserve = new DiskReserve({ directory: path.dirname(config.database.path) });
  await using store = await SqliteStore.open({ path: config.database.path, reserve });
  try {
    await rename(path.join(dataDir, "runtimes"), path.join(dataDir, leftPrefix + randomUUID().slice(0, 8)));
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "ENOENT")) throw error;
  }
  await renewInstallation({ dataDir, settings: store, newId: randomIds.secret(8), now: systemClock.now() });
  const left: string[] = [];
  for (const name of (await readdir(dataDir)).filter((entry) => entry.startsWith(leftPrefix))) {
    const folder = path.join(dataDir, name);
    await rm(folder, { recursive: true, force: true }).catch(() => left.push(folder));
  }
  return { left };
}
