import { mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import type { RouteApp } from "../../src/api/routes/route-app.ts";
import type { Config } from "../../src/config/config.ts";
import { loadConfig } from "../../src/config/load.ts";
import { openControlPlane } from "../../src/control-plane.ts";
import type { EventLog } from "../../src/core/events/event-log.ts";
import type { ExecService } from "../../src/core/exec/exec-service.ts";
import type { KeyRing } from "../../src/core/keys/key-ring.ts";
import { ProviderRegistry } from "../../src/core/providers/provider-registry.ts";
import type { Reconciler } from "../../src/core/reconcile/reconciler.ts";
import type { SandboxLifecycle } from "../../src/core/sandboxes/compose.ts";
import type { SandboxService } from "../../src/core/sandboxes/sandbox-service.ts";
import { type Logger, silentLogger } from "../../src/platform/logger.ts";
import { systemClock } from "../../src/platform/system-clock.ts";
import type { RuntimeProvider } from "../../src/ports/runtime-provider.ts";
import type { Store } from "../../src/ports/store.ts";
import { SqliteStore } from "../../src/stores/sqlite/index.ts";

/** Of the repository: what a server built from it reports. */
export const projectVersion = String(createRequire(import.meta.url)("../../../../package.json").version);

/** How many sandboxes fit must not depend on the machine that tests run on. */
const anyMachine = { ALCOVE_DEFAULTS_MAX_MEMORY_MB: "1000000000", ALCOVE_DEFAULTS_MAX_VCPUS: "1000000" };

/** Makes a provider under test for one server; what it defers to `stack` runs after the provider is closed. */
export type ProviderFactory = (options: {
  dataDir: string;
  config: Config;
  stack: AsyncDisposableStack;
}) => Promise<RuntimeProvider>;

export interface TestServerOptions {
  provider: ProviderFactory;
  /** Configuration as in the environment: `ALCOVE_AUTH_API_KEY`. */
  env?: Record<string, string>;
  /** Kept from an earlier server, to play a restart. */
  dataDir?: string;
  logger?: Logger;
  /** Puts something between the service and its store. */
  wrapStore?: (store: SqliteStore) => SqliteStore;
  /** Why the store takes nothing new. */
  storeRefusal?: () => string | undefined;
}

/** The whole service with a real store, on a free port of the loopback. */
export interface TestServer extends AsyncDisposable {
  readonly url: string;
  readonly app: RouteApp;
  readonly config: Config;
  readonly store: Store;
  readonly execs: ExecService;
  readonly sandboxes: SandboxService;
  readonly lifecycle: SandboxLifecycle;
  readonly provider: RuntimeProvider;
  readonly events: EventLog;
  readonly reconciler: Reconciler;
  readonly keys: KeyRing;
}

export async function startTestServer(options: TestServerOptions): Promise<TestServer> {
  await using stack = new AsyncDisposableStack();
  const dataDir = options.dataDir ?? (await temporaryDirectory(stack));
  const config = loadConfig({
    env: { ALCOVE_DATA_DIR: dataDir, ALCOVE_SERVER_PORT: "0", ...anyMachine, ...options.env },
    cwd: dataDir,
  });
  const opened = stack.use(await SqliteStore.open({ path: config.database.path }));
  const store = options.wrapStore?.(opened) ?? opened;
  const provider = stack.use(await options.provider({ dataDir, config, stack }));
  const registry = new ProviderRegistry({
    providers: [provider],
    defaultName: provider.name,
    clock: systemClock,
  });
  const { app, events, sandboxes, lifecycle, execs, reconciler, keys } = await openControlPlane({
    config,
    logger: options.logger ?? silentLogger,
    store,
    registry,
    version: projectVersion,
    ...(options.storeRefusal === undefined ? {} : { storeRefusal: options.storeRefusal }),
    opened: stack,
  });
  reconciler.start();
  const url = await app.listen({ host: "127.0.0.1", port: 0 });
  await reconciler.ready;
  const owned = stack.move();
  return {
    url,
    app,
    config,
    store,
    execs,
    sandboxes,
    lifecycle,
    provider,
    events,
    reconciler,
    keys,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

async function temporaryDirectory(stack: AsyncDisposableStack): Promise<string> {
  const directory = await mkdtemp(path.join(tmpdir(), "alcove-test-"));
  stack.defer(() => rm(directory, { recursive: true, force: true }));
  return directory;
}
