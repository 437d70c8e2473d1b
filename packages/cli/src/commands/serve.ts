import { setTimeout } from "node:timers/promises";
import type { RunningService } from "@alcove/server/main";
import { commandName } from "../release.ts";
import { Supervisor } from "../supervisor.ts";
import { outliveReaders } from "../terminal/output.ts";
import { printable } from "../terminal/printable.ts";
import { elapsed } from "../terminal/text.ts";
import { version } from "../version.ts";
import { type ConfigFlags, loadLocalConfig } from "./load-config.ts";
import { oneAtATime } from "./one-at-a-time.ts";

/** One Ctrl-C reaches a process several times: from the terminal, from npm, from the start script. */
const sameKeypressMs = 750;
/** How long a supervisor waits for the first inventories. */
const supervisorPatienceMs = 60_000;
const signalCodes = { SIGINT: 130, SIGTERM: 143 } as const;

/** Runs the service until a signal ends it. The second signal ends it at once. */
export async function serve(flags: ConfigFlags): Promise<void> {
  const startedAt = performance.now();
  const started = Promise.withResolvers<Started>();
  // First of all, because it would end the process otherwise: what is asked for during the start is done after it.
  process.on(
    "SIGHUP",
    oneAtATime(async () => {
      const { service, flags: found } = await started.promise;
      await service.reload(async () => (await loadLocalConfig(found)).config);
    }),
  );
  const loaded = await loadLocalConfig(flags);
  const [{ lintConfig, waysIn }, { serve: startService }, { createLogger }] = await Promise.all([
    import("@alcove/server/config"),
    import("@alcove/server/main"),
    import("@alcove/server/logger"),
  ]);
  const { config } = loaded;
  outliveReaders();
  const stopping = onSignals();
  const logger = await createLogger(config.logging);
  using supervisor = new Supervisor({ env: process.env, pid: process.pid, logger });
  supervisor.keepAlive();
  for (const { id, message, advice } of lintConfig(loaded, { production: false }))
    logger.warn({ rule: id, advice }, message);
  const service = await startService({ config, logger });
  process.stdout.write(
    printable(
      startReport(service, {
        elapsedMs: performance.now() - startedAt,
        file: loaded.file,
        dataDir: config.dataDir,
        auth: config.auth.enabled,
        exposed: waysIn(config.server).length > 0,
        keyFile: loaded.keys.text("auth.api_key_file"),
        pooled: config.pool.enabled,
      }),
    ),
  );
  // The file that was found is the one that is read again: away, it is missing, not another place's turn.
  const { file } = loaded;
  started.resolve({ service, flags: file === undefined ? flags : { ...flags, config: file } });
  void readyOrLate(service).then((status) => supervisor.ready(status));
  const signal = await stopping;
  void supervisor.stopping(`${signal}: lets calls finish`);
  logger.info({ signal }, "stopping; sandboxes stay unless server.destroy_on_exit is set");
  await service.close();
}

/** A start that takes longer is told all the same: the service answers, and `/ready` says what it waits for. */
async function readyOrLate(service: RunningService): Promise<string> {
  const late = setTimeout(supervisorPatienceMs, "listens; /ready says what it waits for", { ref: false });
  return await Promise.race([service.ready.then(() => `takes spawns on ${service.defaultProvider}`), late]);
}

interface Started {
  service: RunningService;
  flags: ConfigFlags;
}

/** @returns the first signal; later ones end the process at once. */
function onSignals(): Promise<keyof typeof signalCodes> {
  const first = Promise.withResolvers<keyof typeof signalCodes>();
  let firstAt: number | undefined;
  const receive = (signal: keyof typeof signalCodes) => {
    if (firstAt === undefined) {
      firstAt = performance.now();
      first.resolve(signal);
    } else if (performance.now() - firstAt > sameKeypressMs) {
      process.exit(signalCodes[signal]);
    }
  };
  process.on("SIGINT", () => receive("SIGINT"));
  process.on("SIGTERM", () => receive("SIGTERM"));
  // Node would open its debugger to whoever reaches the loopback.
  process.on("SIGUSR1", () => undefined);
  return first.promise;
}

/** What the client has to be told to reach this service. */
function settingsOf(url: string, { auth, keyFile }: { auth: boolean; keyFile: string }): string[] {
  const where = url === "http://127.0.0.1:7423" ? [] : [`  export ALCOVE_URL=${url}`];
  const key = keyFile === "" ? "YOUR_KEY" : `$(cat ${keyFile})`;
  return [...where, ...(auth ? [`  export ALCOVE_API_KEY=${key}`] : [])];
}

export function startReport(
  service: Pick<
    RunningService,
    "url" | "defaultProvider" | "simulated" | "providers" | "refused" | "failing"
  >,
  start: {
    elapsedMs: number;
    file: string | undefined;
    dataDir: string;
    auth: boolean;
    /** Others than this machine reach it. */
    exposed: boolean;
    keyFile: string;
    /** A spawn says then for whom. */
    pooled: boolean;
  },
): string {
  const others = service.providers.filter((name) => name !== service.defaultProvider);
  const lines = [
    `Alcove ${version()} at ${service.url}, after ${elapsed(start.elapsedMs)}`,
    `  runs sandboxes on  ${service.defaultProvider}${service.simulated ? ", which only SIMULATES them" : ""}`,
    ...(others.length > 0 ? [`  also               ${others.join(", ")}`] : []),
    ...service.refused.map(({ name, reason }) => `  not ${name.padEnd(15)}${reason}`),
    ...service.failing.map(({ name, reason }) => `  no spawns now on   ${name}: ${reason}`),
    `  data               ${start.dataDir}`,
    `  configuration      ${start.file ?? "defaults and environment"}`,
    `  keys               ${start.auth ? "required" : start.exposed ? "none needed by ANYBODY who reaches it (server.allow_insecure)" : "none needed, this machine only"}`,
    `  API                ${service.url}/docs`,
    "",
    "Next, in another terminal:",
    ...settingsOf(service.url, start),
    `  id=$(${commandName()} spawn${start.pooled ? " --user-id me" : ""}) && ${commandName()} exec $id 'uname -a'`,
    "",
  ];
  return lines.map((line) => `${line}\n`).join("");
}
