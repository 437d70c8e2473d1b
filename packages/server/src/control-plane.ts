import { randomBytes } from "node:crypto";
import path from "node:path";
import { buildApp } from "./api/app.ts";
import type { RouteApp } from "./api/routes/route-app.ts";
import type { Config } from "./config/config.ts";
import { ConfigReload } from "./config-reload.ts";
import { AnswerBudget } from "./core/answers/answer-budget.ts";
import { BodyBudget } from "./core/answers/body-budget.ts";
import { SmallAnswers } from "./core/answers/small-answers.ts";
import { AuditLog } from "./core/audit/audit-log.ts";
import { OperationMetrics } from "./core/diagnostics/operation-metrics.ts";
import { ResponseCounts } from "./core/diagnostics/response-counts.ts";
import { ServiceFigures } from "./core/diagnostics/service-figures.ts";
import { type EventIdMarks, EventLog } from "./core/events/event-log.ts";
import { ExecService } from "./core/exec/exec-service.ts";
import { FileService } from "./core/files/file-service.ts";
import { KeyRing } from "./core/keys/key-ring.ts";
import { Tickets } from "./core/keys/tickets.ts";
import { Pool } from "./core/pool/pool.ts";
import { LinkIssuers } from "./core/previews/link-issuers.ts";
import { PreviewLinks } from "./core/previews/preview-links.ts";
import { PreviewPlaces } from "./core/previews/preview-places.ts";
import { Previews } from "./core/previews/previews.ts";
import { localWorkerId } from "./core/providers/provider-address.ts";
import type { ProviderRegistry } from "./core/providers/provider-registry.ts";
import { Limits } from "./core/quotas/limits.ts";
import { Quotas } from "./core/quotas/quotas.ts";
import { RateLimits } from "./core/rate-limits/rate-limits.ts";
import { Reconciler } from "./core/reconcile/reconciler.ts";
import { Retention } from "./core/reconcile/retention.ts";
import { composeSandboxes, type SandboxLifecycle } from "./core/sandboxes/compose.ts";
import { largestPageBytes } from "./core/sandboxes/listing.ts";
import type { SandboxService } from "./core/sandboxes/sandbox-service.ts";
import { Templates } from "./core/templates/templates.ts";
import { Drain } from "./core/workers/drain.ts";
import { LocalWorker } from "./core/workers/local-worker.ts";
import { Workers } from "./core/workers/workers.ts";
import { DescriptorFigures } from "./platform/descriptors.ts";
import { DiskFigures } from "./platform/disk-figures.ts";
import type { Installation } from "./platform/installation.ts";
import { LastBackup } from "./platform/last-backup.ts";
import type { Logger } from "./platform/logger.ts";
import { ProcessFigures } from "./platform/process-figures.ts";
import { randomIds } from "./platform/random-ids.ts";
import { systemClock } from "./platform/system-clock.ts";
import { thisMachine } from "./platform/this-machine.ts";
import type { Store } from "./ports/store.ts";
import { restsEverywhere } from "./providers/agent/index.ts";
import { openTracer } from "./telemetry/open-tracer.ts";

const destroyAllDeadlineMs = 60_000;
/** What all answers that are put together before they are sent may take at once; a key has three quarters of it, 256 MiB. */
const bufferedAnswersBytes = Math.ceil((256 * 1_048_576 * 4) / 3);
/** Beside these, what answers up to a MiB may take. */
const smallAnswersBytes = 16 * 1_048_576;
const largestSmallAnswer = 1_048_576;
/** How long a stop waits for a collector to take what was traced last. */
const traceFlushMs = 2_000;
/** Four of the largest bodies. */
const bodiesBytes = 256 * 1_048_576;
/** Of messages of WebSockets that are not complete, and input that waits: 64 of the largest messages. */
const socketsBytes = 256 * 1_048_576;
/** Of decoders of raw bodies: fifteen for `br` at once, twenty-eight for `zstd`. */
const unpackingBytes = 256 * 1_048_576;
const cannotUnpack = {
  tooLarge: (bytes: number) => `unpacking the body would take more than ${bytes} bytes`,
  full: {
    why: "packed uploads of others fill the memory there is for unpacking",
    advice: "try again, or upload it packed with gzip, or as it is",
  },
  shareFull: {
    why: "your packed uploads fill your share of the memory there is for unpacking",
    advice: "try again when some have ended, or upload it packed with gzip, or as it is",
  },
};
/** How long one waits for its part. */
const roomWaitMs = 10_000;

export interface ControlPlane {
  /** Not listening yet. */
  app: RouteApp;
  events: EventLog;
  sandboxes: SandboxService;
  lifecycle: SandboxLifecycle;
  execs: ExecService;
  keys: KeyRing;
  reload: ConfigReload;
  /** Not started yet. */
  reconciler: Reconciler;
}

/**
 * The services and the HTTP interface over a store and providers that are already open. Each part is closed with
 * `opened`, in reverse order: first the interface, then what it calls.
 */
export async function openControlPlane(options: {
  config: Config;
  logger: Logger;
  store: Store;
  registry: ProviderRegistry;
  version: string;
  /** Recognises a database that lacks sandboxes; without it whatever the database does not know is destroyed. */
  installation?: Installation;
  /** Why the store takes nothing new now. */
  storeRefusal?: () => string | undefined;
  /** Signs links to previews; without it they are good for this run alone. */
  previewSecret?: Buffer;
  opened: AsyncDisposableStack;
}): Promise<ControlPlane> {
  const { config, logger, store, registry, version, installation, opened } = options;
  const startedMs = systemClock.monotonicMs();
  const operations = new OperationMetrics({
    clock: systemClock,
    providers: registry.all.map(({ name }) => name),
  });
  const tracer = await openTracer({
    settings: config.telemetry,
    logger,
    clock: systemClock,
    version,
    instanceId: installation?.id ?? randomIds.secret(8),
    closeWithinMs: Math.min(traceFlushMs, config.server.shutdownGraceMs),
  });
  if (tracer !== undefined) opened.use(tracer);
  const common = { store, registry, clock: systemClock, logger, operations };
  const events = opened.use(
    await EventLog.open({
      ...common,
      retention: config.store.eventsRetention,
      ...(installation === undefined ? {} : { marks: eventMarks(installation) }),
    }),
  );
  const onMark = (err: unknown) => logger.warn({ err }, "the data directory could not be marked as newer");
  const quotas = await Quotas.open({ ...common, events });
  const limits = new Limits(config.defaults, { quotas, machine: thisMachine() });
  const pool = new Pool(config.pool);
  const templates = new Templates({ store: store.templates, clock: systemClock });
  const audit = opened.use(
    new AuditLog({
      store: store.audit,
      clock: systemClock,
      logger,
      retention: { ageMs: config.auth.adminAuditRetentionMs, count: config.store.maxAudit },
    }),
  );
  const { previewSecret = randomBytes(32) } = options;
  const keys = opened.use(
    await KeyRing.open({ ...common, store: store.keys, events, configured: config.auth }),
  );
  const made = keys.list().filter(({ createdAt }) => createdAt !== null);
  if (!config.auth.enabled && made.length > 0)
    logger.warn(
      { keys: made.length },
      "auth is off: the keys that were made guard nothing, and everybody who reaches the service may do everything; set auth.admin_api_key_file and restart",
    );
  const drain = await Drain.open(common);
  const { sandboxes, lifecycle } = composeSandboxes({
    ...common,
    events,
    ...(installation === undefined ? {} : { beforeAnswered: () => installation.advanced(onMark) }),
    ids: randomIds,
    defaults: config.defaults,
    limits,
    pool,
    templates,
    drain,
    deadmanGraceMs: config.server.deadmanGraceMs,
    workerId: localWorkerId,
  });
  opened.use(sandboxes);
  quotas.onChange(() => sandboxes.limitsChanged());
  // Who waits is asked again, and refused.
  drain.onChange(() => sandboxes.limitsChanged());
  const local = new LocalWorker({ clock: systemClock, limits, providers: registry.all, drain });
  const workers = new Workers({ local, drain });
  const execs = opened.use(
    new ExecService({
      ...common,
      sandboxes,
      events,
      ids: randomIds,
      limits: {
        deadlinesOf: (ownerId) => ({
          defaultTimeoutMs: config.defaults.defaultExecTimeoutMs,
          maxTimeoutMs: limits.current(ownerId).maxExecTimeoutMs,
          ...(quotas.of(ownerId)?.maxExecTimeoutMs ? { quotaOf: ownerId } : {}),
        }),
        maxOutputBytes: config.exec.maxOutputBytes,
        disconnectGraceMs: config.exec.disconnectGraceMs,
      },
      findsAgain: ({ row }) => registry.find(row)?.capabilities.has("adopt") === true,
    }),
  );
  const files = new FileService({
    sandboxes,
    events,
    operations,
    maxUploadBytes: config.files.maxUploadBytes,
    logger,
  });
  const reconciler = opened.use(
    new Reconciler({
      ...common,
      lifecycle,
      events,
      retentionMs: config.store.retentionMs,
      retention: new Retention({
        ...common,
        retentionMs: config.store.retentionMs,
        maxDestroyed: config.store.maxDestroyed,
        eventsMaxAgeMs: config.store.eventsMaxAgeMs,
        audit,
      }),
      ...(installation === undefined ? {} : { recovery: installation }),
    }),
  );
  if (config.server.destroyOnExit) {
    opened.defer(() => sandboxes.destroyAll({ signal: AbortSignal.timeout(destroyAllDeadlineMs) }));
  }
  const ofBodies = {
    waitMs: roomWaitMs,
    clock: systemClock,
    refusals: {
      tooLarge: (bytes: number) => `the body would take more than ${bytes} bytes; upload contents raw`,
      full: {
        why: "bodies that others send, and input of commands that have not read it, fill the memory there is for them",
        advice: "try again, or upload contents raw",
      },
      shareFull: {
        why: "bodies that you send, and input that your commands have not read, fill your share of the memory there is for them",
        advice: "try again, end commands that do not read their input, or upload contents raw",
      },
    },
  };
  const reload = new ConfigReload({ ...common, config, keys, sandboxes });
  const storeRefusal = options.storeRefusal === undefined ? {} : { storeRefusal: options.storeRefusal };
  const responses = new ResponseCounts();
  const rateLimits = opened.use(new RateLimits({ settings: config.rateLimit, clock: systemClock }));
  const previews = new Previews({
    sandboxes,
    clock: systemClock,
    links: new PreviewLinks({
      secret: previewSecret,
      issuers: new LinkIssuers({ secret: previewSecret, keys, authEnabled: config.auth.enabled }),
      clock: systemClock,
    }),
    places: new PreviewPlaces({
      most: config.preview.maxConnections,
      mostOfSandbox: config.preview.maxConnectionsPerSandbox,
    }),
    settings: {
      ...config.preview,
      access: config.preview.access ?? (config.auth.enabled ? "signed" : "public"),
    },
    sharesNetwork: ({ provider, network }) => network === "host" || sharesNetwork(config.providers, provider),
  });
  const app = await buildApp({
    ...common,
    sandboxes,
    execs,
    files,
    quotas,
    limits,
    templates,
    audit,
    answers: new AnswerBudget({
      // Two streams of a command, twice, are within one owner's half.
      totalBytes: Math.max(bufferedAnswersBytes, 8 * config.exec.maxOutputBytes),
      largestBytes: Math.max(2 * config.exec.maxOutputBytes, largestPageBytes),
      waitMs: roomWaitMs,
      clock: systemClock,
      small: new SmallAnswers({ totalBytes: smallAnswersBytes, largestBytes: largestSmallAnswer }),
    }),
    bodies: new BodyBudget({ ...ofBodies, totalBytes: bodiesBytes }),
    inputs: new BodyBudget({ ...ofBodies, totalBytes: (bodiesBytes / 4) * 3 }),
    sockets: new BodyBudget({ ...ofBodies, totalBytes: socketsBytes }),
    unpacking: new BodyBudget({ ...ofBodies, totalBytes: unpackingBytes, refusals: cannotUnpack }),
    events,
    keys,
    tickets: new Tickets({ clock: systemClock }),
    previews,
    rateLimits,
    responses,
    workers,
    drain,
    figures: new ServiceFigures({
      ...common,
      config,
      startedMs,
      process: opened.use(new ProcessFigures()),
      sandboxes,
      quotas,
      rateLimits,
      audit,
      events,
      workers,
      drain,
      execs,
      rests: restsEverywhere,
      responses,
      previews,
      descriptors: opened.use(new DescriptorFigures({ clock: systemClock })),
      disks: opened.use(
        new DiskFigures({
          folders: { data: config.dataDir, database: path.dirname(config.database.path) },
          clock: systemClock,
        }),
      ),
      reload,
      lastBackup: await LastBackup.open(config.dataDir, systemClock),
      ...storeRefusal,
    }),
    config,
    tracer,
    version,
    startedMs,
    ready: () => sandboxes.ready,
    ...storeRefusal,
  });
  opened.defer(async () => {
    sandboxes.refuseWaiting();
    await app.close();
  });
  return { app, events, sandboxes, lifecycle, execs, reconciler, keys, reload };
}

function eventMarks(installation: Installation): EventIdMarks {
  return {
    givenUpto: installation.eventsGivenUpto,
    mark: (upto) => installation.markEvents(upto),
  };
}

/** Whether the ports of sandboxes that a provider makes now are this machine's. */
function sharesNetwork({ native, docker }: Config["providers"], provider: string): boolean {
  if (provider === "native") return native.networkMode === "host";
  if (provider === "docker") return docker.networkMode === "host";
  return provider === "proot";
}
