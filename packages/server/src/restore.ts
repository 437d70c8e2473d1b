import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { readdir, rename } from "node:fs/promises";
import path from "node:path";
import type { Config } from "./config/config.ts";
import { liveStates } from "./core/sandboxes/states.ts";
import { lockDatabase, lockDataDir } from "./platform/data-dir-lock.ts";
import { databaseOfItsOwn, foreignDatabase, takeDatabase } from "./platform/database-owner.ts";
import { DiskReserve } from "./platform/disk-reserve.ts";
import {
  directoryIn,
  installationIn,
  isOriginal,
  renewInstallation,
  restoredAt,
} from "./platform/installation.ts";
import { forgetBackup } from "./platform/last-backup.ts";
import { randomIds } from "./platform/random-ids.ts";
import { removeTree } from "./platform/remove-tree.ts";
import { systemClock } from "./platform/system-clock.ts";
import { Conflict, NotFound } from "./ports/index.ts";
import { instanceName } from "./providers/launcher/index.ts";
import { SqliteStore } from "./stores/sqlite/sqlite-store.ts";

/** Folders that an earlier restore could not remove begin with this. */
const leftPrefix = ".runtimes-of-the-original-";

export interface Restored {
  /** The name that the sandboxes of the installation it was bear; undefined where nothing says it. */
  former: string | undefined;
  /** What could not be removed. */
  left: string[];
}

/**
 * Makes a copied or restored data directory an installation of its own. What its records name, processes, groups and
 * containers, is the original's and stays untouched; the folders of those runtimes go. Their sandboxes are in state
 * `error` after the next start. Repeatable.
 * @param options.evenOriginal of the original too, which gives up its sandboxes by that: they run on, and nobody knows them;
 *  and with a database that another directory has, which loses it.
 * @throws DataDirLocked while a service runs here, or with this database; NotFound when there is no such directory; Conflict
 *  when it is no copy, or its database another's.
 */
export async function restore(options: { config: Config; evenOriginal?: boolean }): Promise<Restored> {
  const { config, evenOriginal = false } = options;
  const { dataDir } = config;
  if (!existsSync(dataDir)) throw new NotFound(`there is no data directory ${dataDir}`);
  using _lock = lockDataDir(dataDir);
  using _databaseLock = lockDatabase(config.database.path);
  await using reserve = new DiskReserve({ directory: path.dirname(config.database.path) });
  const inPlace = isOriginal(dataDir);
  if (inPlace && !evenOriginal && !existsSync(config.database.path)) throw noCopy(dataDir);
  await using store = await SqliteStore.open({ path: config.database.path, reserve });
  const mine = { dataDir, file: config.database.path, settings: store };
  const foreign = await foreignDatabase({ ...mine, written: directoryIn(dataDir) });
  if (foreign !== undefined && !evenOriginal)
    throw new Conflict(
      `Nothing was changed: ${foreign.directory ?? "whoever has it"} would lose its database, and every sandbox in it. ` +
        `${databaseOfItsOwn(foreign, dataDir, inPlace ? "serve" : "restore")}, and every start with the same. Where nobody will start ` +
        `${foreign.directory ?? "the other one"} again, "alcove restore --new-identity" takes the database over`,
    );
  const known = await store.setting("instance_id");
  const id = installationIn(dataDir) ?? known;
  // With a database of another installation no service starts here, and nothing of it runs.
  const original = inPlace && (known === undefined || known === id);
  const former = id === undefined ? undefined : instanceName(id);
  // Renewed before, and not started since: what could not be removed then may go now.
  const renewed =
    (await store.setting(restoredAt)) !== undefined && (await store.setting("generation")) === "0";
  if (original && renewed) return { former: undefined, left: await removeLeft(dataDir) };
  if (original && !evenOriginal) throw noCopy(dataDir);
  try {
    await rename(path.join(dataDir, "runtimes"), path.join(dataDir, leftPrefix + randomUUID().slice(0, 8)));
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "ENOENT")) throw error;
  }
  await forgetBackup(dataDir);
  await takeDatabase(mine);
  await disown(store);
  await renewInstallation({ dataDir, settings: store, newId: randomIds.secret(8), now: systemClock.now() });
  return { former, left: await removeLeft(dataDir) };
}

/**
 * Its sandboxes get names of runtimes that are nobody's: by the former ones whoever ends what is left of them would end the
 * original's, where a backend or a folder of microVMs is that of both.
 */
async function disown(store: SqliteStore): Promise<void> {
  const fence = { holder: "restore", generation: 0 };
  for (const { id, updatedAt } of await store.sandboxes.listLive())
    await store.sandboxes.update(id, liveStates, { runtimeId: randomIds.runtimeId(), updatedAt }, fence);
}

function noCopy(dataDir: string): Conflict {
  return new Conflict(
    `${dataDir} is the original, no copy: as an installation of its own it would give up its sandboxes, which run on. Nothing ` +
      "was changed. To restore a backup in place, put the database back and start the service (docs/operations/backup.md); " +
      'for a new identity all the same, "alcove restore --new-identity"',
  );
}

async function removeLeft(dataDir: string): Promise<string[]> {
  const left: string[] = [];
  for (const name of (await readdir(dataDir)).filter((entry) => entry.startsWith(leftPrefix))) {
    const folder = path.join(dataDir, name);
    // Where the directory is the original's own, its sandboxes may still be running in there.
    await removeTree(folder).catch(() => left.push(folder));
  }
  return left;
}
