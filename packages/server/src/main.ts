import { mkdir } from "node:fs/promises";
import type { AddressInfo } from "node:net";
import path from "node:path";
import type { Config } from "./config/config.ts";
import { openControlPlane } from "./control-plane.ts";
import { ProviderRegistry } from "./core/providers/provider-registry.ts";
import { randomIds } from "./core/random-ids.ts";
import { imageSettings, openImageStore } from "./images.ts";
import { lockDataDir } from "./platform/data-dir-lock.ts";
import { DiskReserve } from "./platform/disk-reserve.ts";
import { Installation } from "./platform/installation.ts";
import type { Logger } from "./platform/logger.ts";
import { systemClock } from "./platform/system-clock.ts";
import { providerCandidates } from "./provider-candidates.ts";
import { checkCandidates, selectProviders } from "./provider-selection.ts";
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
  /** Resolves when the default provider takes spawns. */
  ready: Promise<void>;
  /** Stops accepting, lets calls finish within `server.shutdown_grace`, ends the rest. Idempotent. */
  close(): Promise<void>;
}

/**
 * The control plane in one process: composition root, alone in naming concrete classes. What it opens is closed in
 * reverse order, also when a later step of the start fails.
 */
export async function serve(options: { config: Config; logger: Logger }): Promise<RunningService> {
  const { config, logger } = options;
  const clock = systemClock;
  await using opened = new AsyncDisposableStack();

  await mkdir(config.dataDir, { recursive: true, mode: 0o711 });
  opened.use(await lockDataDir(config.dataDir));
  const reserve = opened.use(new DiskReserve({ directory: path.dirname(config.database.path) }));
  const store = opened.use(await SqliteStore.open({ path: config.database.path, reserve }));
  const installation = opened.use(
    await Installation.open({ dataDir: config.dataDir, settings: store, newId: randomIds.secret(8) }),
  );
  if (installation.recovering) {
    logger.warn(
      { data_dir: config.dataDir },
      "the database is new or older than what runs here: sandboxes it does not know are taken in from their records",
    );
  }
  const instanceId = installation.id;

  const images = await openImageStore({ ...imageSettings(config), logger });
  const candidates = await providerCandidates({ config, instanceId, images, logger, clock });
  for (const candidate of candidates) if ("provider" in candidate) opened.use(candidate.provider);
  const selection = selectProviders(await checkCandidates(candidates), {
    config,
    root: process.getuid?.() === 0,
    logger,
  });
  const registry = new ProviderRegistry({
    providers: selection.providers,
    defaultName: selection.defaultName,
    clock,
  });

  const { app, reconciler } = await openControlPlane({
    config,
    logger,
    store,
    registry,
    version,
    installation,
    opened,
  });
  await app.listen({ host: config.server.host, port: config.server.port });
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
    refused: selection.refused,
    ready: reconciler.ready,
    close: () => {
      closing ??= owned.disposeAsync();
      return closing;
    },
  };
}

function urlOf(address: AddressInfo | string | null, host: string): string {
  if (address === null || typeof address === "string") throw new Error("the server listens on no port");
  return `http://${host.includes(":") ? `[${host}]` : host}:${address.port}`;
}
