import { constants, existsSync } from "node:fs";
import { access, readdir, rm } from "node:fs/promises";
import path from "node:path";
import type { Config } from "./config/config.ts";
import { ProviderPlaces } from "./core/reconcile/provider-places.ts";
import { removeLeftovers } from "./doctor/leftovers.ts";
import { imageSettings, openImageStore } from "./images.ts";
import { abortable } from "./platform/abortable.ts";
import { lockDatabase, lockDataDir } from "./platform/data-dir-lock.ts";
import { isBelow, realDatabase } from "./platform/database-owner.ts";
import { deadlineAfter } from "./platform/deadline.ts";
import { DiskReserve, reserveFiles } from "./platform/disk-reserve.ts";
import { Installation, installationIn, restoredAt } from "./platform/installation.ts";
import type { Logger } from "./platform/logger.ts";
import { messageOf } from "./platform/message-of.ts";
import { randomIds } from "./platform/random-ids.ts";
import { systemClock } from "./platform/system-clock.ts";
import {
  BadRequest,
  type CallOptions,
  NotFound,
  type RuntimeId,
  type RuntimeProvider,
  type SandboxRow,
  Unavailable,
} from "./ports/index.ts";
import { providerCandidates } from "./provider-candidates.ts";
import { orphanedContainers } from "./providers/docker/index.ts";
import { removeSharedFiles } from "./providers/firecracker/index.ts";
import { instanceName } from "./providers/launcher/index.ts";
import { endGroupsOf } from "./providers/native/index.ts";
import { runtimesByInstallation } from "./providers/runtime-records/index.ts";
import { SqliteStore } from "./stores/sqlite/sqlite-store.ts";

const inventoryDeadlineMs = 15_000;
const destroyDeadlineMs = 30_000;
const notEnabled =
  "it is not enabled here; purge with the --config or --set that the service is started with";
/** Longer than a provider that is there tries it: one sandbox that does not end is told by itself. */
const endRuntimeDeadlineMs = 40_000;
/** Also groups below a unit that systemd gave the service. */
const findGroups = "find /sys/fs/cgroup -type d -name 'alcove-*' -prune";

export interface Purged {
  /** What was ended: `<provider>/<runtime id>`, a control group, or `container <id>`. */
  ended: string[];
  /** What could not be ended or asked, and why. */
  left: string[];
}

/**
 * Ends every sandbox of an installation that is stopped; with `remove` its data directory goes too.
 * @throws DataDirLocked while its service runs; ForeignDataDir when what its records name may be another's; NotFound when
 *  there is no such directory.
 */
export async function purge(options: { config: Config; remove: boolean; logger: Logger }): Promise<Purged> {
  const { config, logger } = options;
  const { dataDir } = config;
  const purged: Purged = { ended: [], left: [] };
  if (!existsSync(dataDir)) {
    throw new NotFound(
      `there is no data directory ${dataDir}, so nothing was ended; "alcove purge --instance NAME" ends what runs ` +
        `without one (names: ${findGroups})`,
    );
  }
  await refuseReadOnly(dataDir);
  using _lock = lockDataDir(dataDir);
  using _databaseLock = lockDatabase(config.database.path);
  const { id, missing } = await endKnown(config, { purged, logger });
  // Providers end what their records name; records may be lost.
  await endUnrecorded(instanceName(id), { config, purged });
  try {
    purged.ended.push(...(await removeLeftovers(dataDir)));
  } catch (error) {
    purged.left.push(`what an alcove doctor left: ${messageOf(error)}`);
  }
  purged.left.push(...(await livingIn(config, { id, missing })));
  if (options.remove && purged.left.length === 0) {
    await removeDatabase(config);
    const machines = config.providers.firecracker.dataDir;
    if (machines !== "" && !isBelow(machines, dataDir)) await removeSharedFiles(machines);
    await rm(dataDir, { recursive: true, force: true });
  }
  return purged;
}

/** Where it lies outside the directory, which goes as a whole. */
async function removeDatabase({ dataDir, database }: Config): Promise<void> {
  if (isBelow(database.path, dataDir)) return;
  const file = realDatabase(database.path);
  const folder = path.dirname(file);
  const lock = `${file}.lock`;
  const names = ["", "-wal", "-shm", ".lock.pid", ".lock"].map((end) => `${file}${end}`);
  // The space set aside is for all databases of a folder.
  const shared = (await readdir(folder)).some(
    (name) => name.endsWith(".lock") && path.join(folder, name) !== lock,
  );
  if (!shared) names.push(...reserveFiles(path.dirname(database.path)));
  for (const name of names) await rm(name, { force: true });
}

/** @throws Error with the way out, and the one that needs nothing of the directory. */
async function refuseReadOnly(dataDir: string): Promise<void> {
  try {
    await access(dataDir, constants.W_OK);
  } catch (cause) {
    const id = installationIn(dataDir);
    throw new Error(
      `the data directory ${dataDir} cannot be written to (${messageOf(cause)}): give it to the user that purges, on a file ` +
        `system that is not read-only, or end what runs without it: alcove purge --instance ${id === undefined ? "NAME" : instanceName(id)} --yes` +
        (id === undefined ? ` (names: ${findGroups})` : ""),
      { cause },
    );
  }
}

/**
 * Ends what providers know by their records, and hosted ones, which have none, by what they list.
 * @returns the installation's id, and why providers are missing that need the agent.
 */
async function endKnown(
  config: Config,
  { purged, logger }: { purged: Purged; logger: Logger },
): Promise<{ id: string; missing: string | undefined }> {
  const { dataDir } = config;
  await using opened = new AsyncDisposableStack();
  const reserve = opened.use(new DiskReserve({ directory: path.dirname(config.database.path) }));
  const store = opened.use(await SqliteStore.open({ path: config.database.path, reserve }));
  const { id, noteKey } = opened.use(
    await Installation.open({
      dataDir,
      settings: store,
      newId: randomIds.secret(8),
      database: config.database.path,
    }),
  );
  const images = await openImageStore({ ...imageSettings(config), logger });
  const candidates = await providerCandidates({
    config,
    instanceId: id,
    noteKey,
    images,
    logger,
    clock: systemClock,
  });
  let missing: string | undefined;
  const restored = await store.setting(restoredAt).catch(() => undefined);
  const rows = (await rowsIn(store, logger)).filter(
    // The runtimes of those are the original's.
    ({ createdAt }) => restored === undefined || createdAt > new Date(restored),
  );
  for (const candidate of candidates) {
    const { name, isolation, enabled } = candidate;
    if ("missing" in candidate) {
      missing = candidate.missing;
      continue;
    }
    const { provider } = candidate;
    if (provider.inProcess === true) continue;
    opened.use(provider);
    if (isolation === "hosted") {
      const known = runtimesAt(name, rows);
      if (enabled === true) {
        const listed = await endRuntimes(provider, purged, known);
        const places = new ProviderPlaces({ store, logger, now: () => systemClock.now() });
        if (listed !== undefined) purged.left.push(...(await unlisted(provider, { rows, listed, places })));
        const ended = rows.filter(({ runtimeId }) => purged.ended.includes(`${name}/${runtimeId}`));
        await writeEnded(store, ended, logger);
      } else if (known.length > 0) purged.left.push(...mayStillRun(name, notEnabled, known));
      continue;
    }
    // A provider that never ran anything here is not asked: its engine may not even be there.
    const folder = path.join(dataDir, "runtimes", name);
    if (existsSync(folder)) await endRuntimes(provider, purged, await readdir(folder));
  }
  return { id, missing };
}

/** Nothing where the database is damaged, which keeps nobody from leaving: what providers list and record is ended all the same. */
export async function rowsIn(
  store: { sandboxes: Pick<SqliteStore["sandboxes"], "listLive"> },
  logger: Pick<Logger, "error">,
): Promise<SandboxRow[]> {
  try {
    return await store.sandboxes.listLive();
  } catch (err) {
    logger.error(
      { err },
      "the database does not say which sandboxes it has: what a provider runs elsewhere that is not enabled here goes on, and is not named",
    );
    return [];
  }
}

/** So that a purge which is repeated does not look for them. A database that takes nothing keeps nobody from leaving. */
async function writeEnded(
  store: { sandboxes: Pick<SqliteStore["sandboxes"], "update"> },
  rows: readonly SandboxRow[],
  logger: Pick<Logger, "error">,
): Promise<void> {
  const change = { state: "error", error: "it was ended by alcove purge", env: {} } as const;
  const fence = { holder: "purge", generation: 0 };
  try {
    for (const { id } of rows)
      await store.sandboxes.update(
        id,
        ["running", "unhealthy"],
        { ...change, updatedAt: systemClock.now() },
        fence,
      );
  } catch (err) {
    logger.error({ err }, "the database does not take the ends of sandboxes");
  }
}

/** What the database knows of a provider's runtimes that may run. */
function runtimesAt(provider: string, rows: readonly SandboxRow[]): string[] {
  // In state error a runtime has ended, or is that of the installation which this one was copied from.
  const running = rows.filter((row) => row.provider === provider && row.state !== "error");
  return running.map(({ runtimeId }) => runtimeId);
}

/** Those that were made at another account or backend than the one that was asked, which does not list them: until they end themselves. */
async function unlisted(
  provider: Pick<RuntimeProvider, "name" | "place">,
  options: { rows: readonly SandboxRow[]; listed: ReadonlySet<string>; places: ProviderPlaces },
): Promise<string[]> {
  const now = systemClock.now();
  const alive = options.rows
    .filter((row) => row.provider === provider.name && (row.state === "running" || row.state === "unhealthy"))
    .map((row) => ({ row, runtimeId: row.runtimeId, until: row.endsItselfAt ?? row.expiresAt }))
    .filter(({ until }) => until > now);
  const away = await options.places.away(provider, alive, options.listed);
  return alive
    .filter(({ runtimeId }) => away.has(runtimeId))
    .map(
      ({ runtimeId, until }) =>
        `${provider.name}/${runtimeId}: it is not listed there; it was made at ${away.get(runtimeId)}, where it may run until ` +
        `${until.toISOString()}: purge with that address and key, or after that`,
    );
}

function mayStillRun(provider: string, why: string, runtimes: Iterable<string>): string[] {
  return [`${provider}: ${why}`, ...[...runtimes].map((id) => `${provider}/${id}: it may still run`)];
}

/**
 * Ends what an installation runs when its directory is gone: its control groups and, where an engine answers, its
 * containers.
 * @param instance its id, or its name as control groups bear it, with or without `alcove-` and the folder before it.
 * @throws BadRequest for what is no name; NotFound when there is nothing of that name.
 */
export async function purgeInstance(instance: string, options: { config: Config }): Promise<Purged> {
  const name = instanceName(path.basename(instance).replace(/^alcove-/, ""));
  if (name === "") throw new BadRequest(`${JSON.stringify(instance)} names no installation`);
  const purged: Purged = { ended: [], left: [] };
  await endUnrecorded(name, { config: options.config, purged });
  if (purged.ended.length === 0 && purged.left.length === 0)
    throw new NotFound(
      `nothing of an installation ${name} runs here: no control group is called alcove-${name}`,
    );
  return purged;
}

/** Ends what is known by name alone: the control groups of an installation and, where an engine answers, its containers. */
async function endUnrecorded(
  name: string,
  { config, purged }: { config: Config; purged: Purged },
): Promise<void> {
  try {
    purged.ended.push(...(await endGroupsOf(name)));
  } catch (error) {
    purged.left.push(`control groups: ${messageOf(error)}`);
  }
  try {
    using ending = deadlineAfter(destroyDeadlineMs);
    const { socket, tlsDir } = config.providers.docker;
    const containers = await orphanedContainers(name, { socket, tlsDir, signal: ending.signal });
    await containers.end();
    purged.ended.push(...containers.ids.map((id) => `container ${id}`));
  } catch (error) {
    purged.left.push(`containers: ${messageOf(error)}`);
  }
}

/**
 * What runs from this directory still: its own where the provider is missing, and that of another identity, to which the
 * records were lost.
 */
export async function livingIn(
  config: Pick<Config, "dataDir" | "providers">,
  own: { id: string; missing: string | undefined },
): Promise<string[]> {
  const left: string[] = [];
  for (const [id, { living, contained }] of await runtimesByInstallation(config.dataDir)) {
    if (id === own.id) {
      if (own.missing !== undefined && living > 0) left.push(`${living} sandboxes: ${own.missing}`);
      continue;
    }
    let count = living;
    if (contained > 0) {
      using asking = deadlineAfter(inventoryDeadlineMs);
      const { socket, tlsDir } = config.providers.docker;
      count += (await orphanedContainers(id, { socket, tlsDir, signal: asking.signal })).ids.length;
    }
    const name = instanceName(id);
    if (count > 0)
      left.push(
        `${count} sandboxes of installation ${name}, which is not this one: alcove purge --instance ${name} --yes ends them`,
      );
  }
  return left;
}

/**
 * Ends all that a provider runs; one that cannot be ended keeps none of the others alive.
 * @param recorded runtimes that have records, named as left when the provider cannot be asked.
 * @returns what it listed; undefined when it did not answer.
 */
export async function endRuntimes(
  provider: Pick<RuntimeProvider, "name" | "destroy"> & {
    inventory(options: CallOptions): Promise<readonly { runtimeId: RuntimeId }[]>;
  },
  purged: Purged,
  recorded: readonly string[] = [],
): Promise<ReadonlySet<string> | undefined> {
  const remaining = new Set(recorded);
  try {
    using listing = deadlineAfter(inventoryDeadlineMs);
    const listed = await abortable(provider.inventory(listing), listing.signal);
    remaining.clear();
    for (const { runtimeId } of listed) remaining.add(runtimeId);
    for (const { runtimeId } of listed) {
      using ending = deadlineAfter(endRuntimeDeadlineMs);
      try {
        await abortable(provider.destroy(runtimeId, ending), ending.signal);
        purged.ended.push(`${provider.name}/${runtimeId}`);
      } catch (error) {
        // Whoever is away for one is away for all.
        if (error instanceof Unavailable || ending.signal.aborted) throw error;
        purged.left.push(`${provider.name}/${runtimeId}: ${messageOf(error)}`);
      }
      remaining.delete(runtimeId);
    }
    return new Set(listed.map(({ runtimeId }) => runtimeId));
  } catch (error) {
    purged.left.push(...mayStillRun(provider.name, messageOf(error), remaining));
    return undefined;
  }
}
