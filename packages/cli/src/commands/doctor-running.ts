import { type AlcoveClient, AlcoveError } from "@alcove/sdk";
import type { ProviderName } from "@alcove/server/config";
import type { DoctorCheck } from "@alcove/server/doctor";
import type { Diagnostics, OperationFigures, ProviderHealth, Readiness } from "@alcove/wire";
import { type ClientFlags, interruptSignal, openClient } from "../context.ts";
import { ExitWith, exitCodes } from "../exit-codes.ts";
import { printJson } from "../terminal/output.ts";
import { printable } from "../terminal/printable.ts";
import { version } from "../version.ts";

const simulation: ProviderName = "mock";
const slowStoreMs = 250;
const clockSkewMs = 30_000;
/** A backup a day, and some hours. */
const oldBackupMs = 30 * 3_600_000;
/** Fewer failures say nothing of a provider. */
const fewestFailures = 5;
const worrying = { ofLimit: 0.9, ofOperations: 0.05 };

/** @param notes what is to be known though nothing is wrong, as `alcove doctor` has it. */
type RunningCheck = DoctorCheck & { notes?: readonly string[] };

/** Looks at a service that runs, over its API. Exits 1 when something is wrong, not for what only deserves attention. */
export async function doctorOfService(flags: ClientFlags & { json?: boolean }): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const checks = await examine(client, { signal: interrupt.signal, now: () => Date.now() });
  const ok = checks.every(({ level }) => level !== "fail");
  if (flags.json) printJson({ ok, checks });
  else process.stdout.write(checks.map(printedCheck).join(""));
  if (!ok) throw new ExitWith(exitCodes.failed);
}

function printedCheck({ level, message, advice, notes = [] }: RunningCheck): string {
  const lines = [
    `  ${level.padEnd(4)}  ${message}`,
    ...(advice === undefined ? [] : [`          ${advice}`]),
    ...notes.map((note) => `          note: ${note}`),
  ];
  return lines.map((line) => `${printable(line)}\n`).join("");
}

async function examine(
  client: AlcoveClient,
  options: { signal: AbortSignal; now: () => number },
): Promise<RunningCheck[]> {
  const { signal } = options;
  let running: string;
  try {
    running = (await client.live({ signal })).version;
  } catch (error) {
    if (!(error instanceof AlcoveError)) throw error;
    const advice = "is it started (systemctl status alcove), and is --url or ALCOVE_URL its address?";
    return [{ id: "service", level: "fail", message: `no service answers: ${error.message}`, advice }];
  }
  const ready = await readiness(client, signal);
  const checks = [checkVersion(running), checkReady(ready)];
  try {
    const providers = await client.providers({ signal });
    const asked = options.now();
    const diagnostics = await client.diagnostics({ signal });
    return [
      ...checks,
      ...providers.map((provider) => checkProvider(provider, ready)),
      ...checkFigures(diagnostics, asked),
    ];
  } catch (error) {
    if (!(error instanceof AlcoveError)) throw error;
    const keys = error.status === 401 || error.status === 403;
    return [
      ...checks,
      {
        id: "diagnostics",
        level: keys ? "warn" : "fail",
        message: `the diagnostics cannot be read: ${error.message}`,
        ...(keys ? { advice: "give a key that may read and is bound to no owner: --api-key" } : {}),
      },
    ];
  }
}

/** Not ready is an answer too. */
async function readiness(
  client: AlcoveClient,
  signal: AbortSignal,
): Promise<Pick<Readiness, "status" | "message">> {
  try {
    return await client.ready({ signal });
  } catch (error) {
    if (!(error instanceof AlcoveError)) throw error;
    return { status: "not_ready", message: error.message };
  }
}

function checkVersion(running: string): DoctorCheck {
  const id = "version";
  // The command names its commit as well.
  return running === version().split(" ")[0]
    ? { id, level: "ok", message: `Alcove ${running} answers` }
    : {
        id,
        level: "warn",
        message: `the service is ${running}, this command ${version()}`,
        advice: "after an upgrade, restart the service: sandboxes outlive that",
      };
}

function checkReady({ status, message }: Pick<Readiness, "status" | "message">): DoctorCheck {
  return status === "ready"
    ? { id: "ready", level: "ok", message: "it takes spawns" }
    : { id: "ready", level: "fail", message: `it takes no spawns: ${message}` };
}

function checkProvider(
  { name, healthy, error, default: isDefault, latency_ms, notes }: ProviderHealth,
  ready: Pick<Readiness, "status">,
): RunningCheck {
  const id = `provider-${name}`;
  const noted = notes === undefined ? {} : { notes };
  if (healthy) {
    const how = `(looked at in ${latency_ms} ms)`;
    const refused = isDefault && ready.status !== "ready";
    const message = refused
      ? `provider ${name} answers ${how}, and takes no spawns now, as above`
      : `provider ${name} works ${how}`;
    // Whoever spawns and names no provider gets a sandbox that runs nothing.
    const level = isDefault && name === simulation ? "warn" : "ok";
    return {
      id,
      level,
      message: level === "ok" ? message : `${message}, and simulates all it does`,
      ...noted,
    };
  }
  return {
    id,
    level: isDefault ? "fail" : "warn",
    ...noted,
    message: `provider ${name} does not work: ${error}`,
    advice: `the service asks it again and again and goes on once it answers; ${
      isDefault
        ? "to go on without it, name another in providers.default and restart"
        : `providers.${name}.enabled: false and a restart leave it out`
    }`,
  };
}

function checkFigures(diagnostics: Diagnostics, asked: number): DoctorCheck[] {
  const { process, store, limits, sandboxes, scheduler, operations } = diagnostics;
  const skewMs = Math.abs(Date.parse(diagnostics.generated_at) - asked);
  const full = limits.max_sandboxes > 0 && sandboxes.active >= limits.max_sandboxes * worrying.ofLimit;
  const unhealthy = sandboxes.by_state.unhealthy ?? 0;
  return [
    attention("store", store.healthy && store.refusal === undefined ? "warn" : "fail", {
      wrong: !store.healthy || store.refusal !== undefined || store.latency_ms > slowStoreMs,
      fine: `the database answers in ${store.latency_ms} ms`,
      message:
        store.refusal ??
        (store.healthy
          ? `the database took ${store.latency_ms} ms`
          : "the database does not answer, or is damaged"),
      advice: "docs/operations/failures.md: look at the log, and at its disk (free space, errors, load)",
    }),
    attention("configuration", "fail", {
      wrong: process.reload_failed !== undefined,
      fine: "its configuration applies",
      message: `its configuration could not be read again at ${process.reload_failed}: the former keys and limits apply, until a restart that may fail`,
      advice: "the log says why, and alcove config lint: put it right, then systemctl reload alcove (SIGHUP)",
    }),
    checkBackup(store, asked),
    attention("capacity", "warn", {
      wrong: full,
      fine: `sandboxes: ${sandboxes.active} of ${limits.max_sandboxes || "any number"}`,
      message: `sandboxes: ${sandboxes.active} of the ${limits.max_sandboxes} that there may be`,
      advice: "destroy some (alcove top tells what they use), or raise defaults.max_sandboxes",
    }),
    attention("queue", "warn", {
      wrong: scheduler.spawn_queue_depth > 0,
      fine: "no spawn waits",
      message: `${scheduler.spawn_queue_depth} spawns wait for a place; ${scheduler.spawn_queue_timeouts} have waited in vain`,
      advice: "as above; who waits in vain is told which limit it was",
    }),
    attention("sandboxes", "warn", {
      wrong: unhealthy > 0,
      fine: "every sandbox answers",
      message: `${unhealthy} sandboxes do not answer`,
      advice: "alcove ls --state unhealthy; the log says why, by sandbox_id",
    }),
    attention("clock", "warn", {
      wrong: skewMs > clockSkewMs,
      fine: "its clock and this one agree",
      message: `its clock and this one are ${Math.round(skewMs / 1_000)} s apart`,
      advice: "expiries go by its clock: let both follow a time server",
    }),
    ...operations.filter(failsOften).map(
      ({ operation, provider, failure_total, success_total }): DoctorCheck => ({
        id: `operation-${operation}-${provider}`,
        level: "warn",
        message: `${operation} on ${provider} failed ${failure_total} times of ${failure_total + success_total} since the start`,
        advice: "the log has each, with its request id: docs/operations/logs.md",
      }),
    ),
  ];
}

function checkBackup({ last_backup: last }: Diagnostics["store"], asked: number): DoctorCheck {
  return attention("backup", "warn", {
    wrong: last === undefined || asked - Date.parse(last) > oldBackupMs,
    fine: `the last backup was made at ${last}`,
    message: last === undefined ? "no backup was ever made here" : `the last backup was made at ${last}`,
    advice: "alcove backup, once a day: docs/operations/backup.md",
  });
}

function failsOften({ failure_total, success_total }: OperationFigures): boolean {
  const total = failure_total + success_total;
  return failure_total >= fewestFailures && failure_total > total * worrying.ofOperations;
}

function attention(
  id: string,
  level: "warn" | "fail",
  found: { wrong: boolean; fine: string; message: string; advice: string },
): DoctorCheck {
  const { wrong, fine, message, advice } = found;
  return wrong ? { id, level, message, advice } : { id, level: "ok", message: fine };
}
