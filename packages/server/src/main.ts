import { randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { access, mkdir, readFile } from "node:fs/promises";
import type { AddressInfo } from "node:net";
import path from "node:path";
import { CandidateChecks } from "./candidate-checks.ts";
import type { Config } from "./config/config.ts";
import { warningsOfKeys } from "./config/weak-keys.ts";
import { openControlPlane } from "./control-plane.ts";
import { ProviderRegistry } from "./core/providers/provider-registry.ts";
import { removeLeftovers } from "./doctor/leftovers.ts";
import { stopEndsSandboxes, unitAdvice } from "./doctor/service-unit.ts";
import { imageSettings, openImageStore } from "./images.ts";
import { lockDatabase, lockDataDir } from "./platform/data-dir-lock.ts";
import { DescriptorWatch, descriptorLimit, tooFewDescriptors } from "./platform/descriptors.ts";
import { DiskReserve } from "./platform/disk-reserve.ts";
import { Installation } from "./platform/installation.ts";
import type { Logger } from "./platform/logger.ts";
import { messageOf } from "./platform/message-of.ts";
import { randomIds } from "./platform/random-ids.ts";
import { openSecretFile } from "./platform/secret-file.ts";
import { systemClock } from "./platform/system-clock.ts";
import { type Candidate, providerCandidates } from "./provider-candidates.ts";
import { type ProviderSelection, selectProviders, stillOpen } from "./provider-selection.ts";
import { instanceName } from "./providers/launcher/index.ts";
import { type RuntimesOfInstallation, runtimesByInstallation } from "./providers/runtime-records/index.ts";
import { type ProvidersBefore, providersBefore, rememberDefault } from "./providers-before.ts";
import { namingDamage } from "./stores/sqlite/disk-errors.ts";
import { SqliteStore } from "./stores/sqlite/sqlite-store.ts";
import { version } from "./version.ts";

export interface RunningService {
  /** Where clients reach it: `http://127.0.0.1:7423`. */
  url: string;
  defaultProvider: string;
  /** Its sandboxes run no program of their own. */
  simulated: boolean;
  /** Providers in use. */
  providers: string[];
  /** Providers that are not used, and why. */
  refused: { name: string; reason: string }[];
  /** Providers in use that take no spawns now, and why. */
  failing: { name: string; reason: string }[];
  /** Resolves when the default provider takes spawns. */
  ready: Promise<void>;
  /**
   * Takes over what can change while it runs: keys, `defaults.*` and the level of the log. The rest needs a restart. What
   * cannot be read changes nothing, and is told. Does not fail. One call at a time.
   */
  reload(read: () => Promise<Config>): Promise<void>;
  /** Stops accepting, lets calls finish within `server.shutdown_grace`, ends the rest. Idempotent. */
  close(): Promise<void>;
}

/**
 * Of the memory that small buffers are cut from: whoever keeps one of a few bytes keeps all of that, and libraries do. Node's own
 * size is eight times as much.
 */
const smallPoolBytes = 8_192;

/**
 * The control plane in one process: composition root, alone in naming concrete classes. What it opens is closed in
 * reverse order, also when a later step of the start fails.
 */
export async function serve(options: { config: Config; logger: Logger }): Promise<RunningService> {
  try {
    return await start(options);
  } catch (error) {
    // Whichever step met it.
    throw namingDamage(error, options.config.database.path);
  }
}

async function start(options: { config: Config; logger: Logger }): Promise<RunningService> {
  Buffer.poolSize = smallPoolBytes;
  const { config, logger } = options;
  const clock = systemClock;
  await using opened = new AsyncDisposableStack();

  for (const warning of warningsOfKeys(config)) logger.warn(warning);
  await makeDataDir(config.dataDir);
  opened.use(lockDataDir(config.dataDir));
  opened.use(lockDatabase(config.database.path));
  const reserve = opened.use(new DiskReserve({ directory: path.dirname(config.database.path), logger }));
  const store = opened.use(await SqliteStore.open({ path: config.database.path, reserve }));
  opened.use(store.checkpoints({ logger }));
  const watch = opened.use(await store.watch({ logger }));
  const found = await runtimesByInstallation(config.dataDir);
  const installation = opened.use(
    await Installation.open({
      dataDir: config.dataDir,
      settings: store,
      newId: randomIds.secret(8),
      database: config.database.path,
      outlived: (id) => outlived(store, found.get(id)),
      onUnwritten: (what, err) =>
        logger.warn(
          { err, data_dir: config.dataDir },
          `${what} cannot be written down now; it is tried again`,
        ),
    }),
  );
  void warnOfUnit(logger);
  void removeLeftovers(config.dataDir).catch((err: unknown) =>
    logger.warn({ err }, "what an alcove doctor that was killed left cannot be removed"),
  );
  const { maxConnections } = config.server;
  const tooFew = tooFewDescriptors({ limit: await descriptorLimit(), maxConnections });
  if (tooFew !== undefined) logger.warn(tooFew);
  opened.use(new DescriptorWatch({ logger, clock }));
  tellWhatIsFound(installation, { found, dataDir: config.dataDir, logger });
  const { id: instanceId, noteKey } = installation;

  const images = await openImageStore({ ...imageSettings(config), logger });
  const candidates = await providerCandidates({ config, instanceId, noteKey, images, logger, clock });
  for (const candidate of candidates) if ("provider" in candidate) opened.use(candidate.provider);
  const before = await providersBefore(store);
  const choosing = { config, root: process.getuid?.() === 0, logger, before };
  const checks = opened.use(new CandidateChecks(candidates, { logger }));
  // Whose runtimes the database may lack has to be known from the beginning: they would be taken for nobody's.
  const open: Parameters<typeof checks.inTime>[0] = (known) =>
    installation.recovering ? "choice" : stillOpen(known, choosing);
  const selection = selectProviders(await checks.inTime(open), choosing);
  if (config.providers.default === "auto") refuseToSimulate(before, selection, candidates);
  await rememberDefault(store, { name: selection.defaultName, before, logger });
  const registry = new ProviderRegistry({
    providers: selection.providers,
    defaultName: selection.defaultName,
    leftOut: new Map(
      selection.refused.filter(({ tried }) => tried).map(({ name, reason }) => [name, reason]),
    ),
    notes: selection.notes,
    clock,
  });

  opened.use(registry.watch());
  const { app, reconciler, reload } = await openControlPlane({
    config,
    logger,
    store,
    registry,
    version,
    installation,
    previewSecret: await previewSecret(config.dataDir, logger),
    storeRefusal: () =>
      reserve.spent ? "the disk of the database is full: destroy sandboxes or free space" : watch.refusal,
    opened,
  });
  await app.listen({ host: config.server.host, port: config.server.port }).catch((cause: unknown) => {
    throw taken(cause) ? portTaken(config.server, cause) : cause;
  });
  reconciler.start();
  void reserve.keep();

  const owned = opened.move();
  let closing: Promise<void> | undefined;
  return {
    url: urlOf(app.server.address(), config.server.host),
    defaultProvider: selection.defaultName,
    simulated: candidates.some(
      ({ name, isolation }) => name === selection.defaultName && isolation === "simulated",
    ),
    providers: selection.providers.map(({ name }) => name),
    failing: selection.failing,
    refused: selection.refused.map(({ name, reason }) => ({ name, reason })),
    ready: reconciler.ready,
    reload: (read) => reload.again(read),
    close: () => {
      closing ??= owned.disposeAsync();
      return closing;
    },
  };
}

/** A full disk does not keep the service from starting: links are then good for this run alone. */
async function previewSecret(dataDir: string, logger: Logger): Promise<Buffer> {
  try {
    return await openSecretFile(path.join(dataDir, "preview.key"));
  } catch (err) {
    logger.warn(
      { err },
      "the secret that signs links to previews could not be kept: links end with this run of the service",
    );
    return randomBytes(32);
  }
}

/** @throws Error naming the directory and why; node says ENOENT of a path above it on a read-only file system. */
async function makeDataDir(dataDir: string): Promise<void> {
  try {
    await mkdir(dataDir, { recursive: true, mode: 0o711 });
    await access(dataDir, constants.W_OK);
  } catch (cause) {
    throw new Error(
      `the data directory ${dataDir} cannot be made or written to (${messageOf(cause)}): choose another data_dir, or give ` +
        "it to the user the service runs as, on a file system that is not read-only",
      { cause },
    );
  }
}

function taken(error: unknown): boolean {
  return error instanceof Error && "code" in error && error.code === "EADDRINUSE";
}

function portTaken({ host, port }: { host: string; port: number }, cause: unknown): Error {
  return new Error(
    `${host}:${port} is taken by another program, perhaps a service that runs already: stop that, or choose another port ` +
      `(--port ${port + 1}, or server.port; 0 is any free one)`,
    { cause },
  );
}

/** Not waited for: systemd may take its time to answer. */
async function warnOfUnit(logger: Logger): Promise<void> {
  const cgroup = await readFile("/proc/self/cgroup", "utf8").catch(() => "");
  const message = await stopEndsSandboxes({ cgroup });
  if (message !== undefined) logger.warn({ advice: unitAdvice }, message);
}

/** A runtime whose birth the database has not counted is younger than it. */
async function outlived(
  { sandboxes }: SqliteStore,
  runtimes: RuntimesOfInstallation | undefined,
): Promise<boolean> {
  for (const [run, number] of runtimes?.lastBirths ?? [])
    if ((await sandboxes.lastBirth(run)) < number) return true;
  return false;
}

/** Says what the records below the data directory mean for what runs: taken in, or somebody else's. */
function tellWhatIsFound(
  installation: Installation,
  { found, dataDir, logger }: { found: Map<string, RuntimesOfInstallation>; dataDir: string; logger: Logger },
): void {
  if (installation.databaseLost) {
    logger.warn(
      { data_dir: dataDir },
      "the database is new or older than this installation: quotas, templates, keys that were made or revoked, and the " +
        "audit history are as of the backup, or gone; limits are those of defaults.* until quotas are set again",
    );
  } else if (installation.markLost) {
    logger.warn(
      { data_dir: dataDir },
      "installation.json was not there, so that nothing tells whether the database is the newest one: sandboxes that run and " +
        "that it does not know are taken in from their records; where it is a backup, quotas, templates and keys are as of then",
    );
  }
  if (
    installation.databaseLost &&
    installation.recovering &&
    (found.has(installation.id) || found.size === 0)
  ) {
    logger.warn(
      { data_dir: dataDir },
      "the database is new or older than what runs here: sandboxes it does not know are taken in from their records",
    );
  }
  found.delete(installation.id);
  for (const [id, { living, contained }] of found) {
    const instance = instanceName(id);
    logger.warn(
      { data_dir: dataDir, instance, sandboxes: living + contained },
      "sandboxes of another installation run from this data directory, because installation.json and the database that " +
        `knew them are gone; they are not touched: alcove purge --instance ${instance} --yes ends them`,
    );
  }
}

/**
 * A simulation that stands in for the provider of sandboxes that are there would look like the service and be none.
 * @throws Error naming what is missing and the way out.
 */
function refuseToSimulate(
  before: ProvidersBefore,
  selection: ProviderSelection,
  candidates: readonly Candidate[],
): void {
  const isolation = candidates.find(({ name }) => name === selection.defaultName)?.isolation;
  if (isolation !== "simulated") return;
  const orphaned = selection.refused.find(({ name }) => before.sandboxes.has(name));
  if (orphaned === undefined) return;
  throw new Error(
    `${before.sandboxes.get(orphaned.name)} sandboxes of provider ${orphaned.name} are here, but it cannot be used (${orphaned.reason}), and only ` +
      `${selection.defaultName}, a simulation, is left: mend it (alcove doctor), or choose providers.default: ` +
      `${selection.defaultName} if that is wanted`,
  );
}

function urlOf(address: AddressInfo | string | null, host: string): string {
  if (address === null || typeof address === "string") throw new Error("the server listens on no port");
  return `http://${host.includes(":") ? `[${host}]` : host}:${address.port}`;
}
