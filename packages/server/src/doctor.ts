import { randomBytes } from "node:crypto";
import { chmod, rm } from "node:fs/promises";
import { CandidateChecks, type CheckedCandidate } from "./candidate-checks.ts";
import type { Config } from "./config/config.ts";
import type { Isolation } from "./config/providers.ts";
import { checkAgentLibrary } from "./doctor/agent-library.ts";
import { doctorInstance, makePlace, removeLeftovers } from "./doctor/leftovers.ts";
import { checkMachine, type DoctorCheck, nearestFolder } from "./doctor/machine.ts";
import { imageSettings, openImageStore } from "./images.ts";
import { deadlineAfter } from "./platform/deadline.ts";
import type { Logger } from "./platform/logger.ts";
import { messageOf } from "./platform/message-of.ts";
import { systemClock } from "./platform/system-clock.ts";
import type { ProviderCheck } from "./ports/index.ts";
import { agentBinary, type Candidate, providerCandidates } from "./provider-candidates.ts";
import { selectProviders } from "./provider-selection.ts";

export type { DoctorCheck } from "./doctor/machine.ts";

export interface ProviderDiagnosis {
  name: string;
  isolation: Isolation;
  /** It runs sandboxes here, as it is configured. */
  works: boolean;
  /** Why it does not, and the way out. */
  error?: string;
  notes: string[];
  /** The service would use it as it is configured now. */
  used: boolean;
  default: boolean;
}

export interface Diagnosis {
  /** Something isolates here, the default provider works, and nothing stands in the way of a start. */
  ok: boolean;
  machine: DoctorCheck[];
  providers: ProviderDiagnosis[];
}

const checkDeadlineMs = 15_000;

/** Which providers can work here and exactly why the others cannot; a composition root of its own. */
export async function diagnose(options: {
  config: Config;
  env: NodeJS.ProcessEnv;
  logger: Logger;
  installed?: boolean;
  /** Ends it early, when all that was tried is taken away. */
  signal?: AbortSignal;
}): Promise<Diagnosis> {
  const { env, installed = false, signal } = options;
  const machine = await checkMachine({ config: options.config, env, installed });
  machine.push(...(await checkAgentLibrary({ binary: agentBinary, installed })));
  if (machine.some(({ id, level }) => id === "data-dir" && level === "fail")) {
    return { ok: false, machine, providers: [] };
  }
  const folder = await nearestFolder(options.config.dataDir);
  await removeLeftovers(folder).catch((error: unknown) => machine.push(leftBehind(error)));
  const opened = new AsyncDisposableStack();
  let providers: ProviderDiagnosis[];
  try {
    // Looking leaves nothing, and nothing of a service that runs is touched: what is tried is tried in a place of its own,
    // on the file system of data_dir, because that decides as well.
    const dataDir = await makePlace(folder);
    opened.defer(() => rm(dataDir, { recursive: true, force: true }));
    await chmod(dataDir, 0o711);
    providers = await tryProviders({ ...options, config: { ...options.config, dataDir }, machine, opened });
  } finally {
    // What it says of the machine is worth more than that all of it could be taken away.
    await opened.disposeAsync().catch((error: unknown) => machine.push(leftBehind(error)));
  }
  signal?.throwIfAborted();
  const isolates = providers.some(({ works, isolation }) => works && isolation !== "simulated");
  const takesSpawns = providers.some((provider) => provider.default && provider.works);
  const ok = isolates && takesSpawns && machine.every(({ level }) => level !== "fail");
  return { ok, machine, providers };
}

function leftBehind(error: unknown): DoctorCheck {
  return {
    id: "leftovers",
    level: "warn",
    message: `what providers were tried with cannot be taken away: ${messageOf(error)}`,
    advice: "the next alcove doctor, or the next start of the service, does it",
  };
}

/** @param opened disposed of by the caller, when nothing is tried any more. */
async function tryProviders(options: {
  config: Config;
  machine: readonly DoctorCheck[];
  logger: Logger;
  signal?: AbortSignal;
  opened: AsyncDisposableStack;
}): Promise<ProviderDiagnosis[]> {
  const { config, machine, logger, signal, opened } = options;
  const images = await openImageStore({ ...imageSettings(config), logger });
  const found = await providerCandidates({
    config,
    instanceId: doctorInstance(process.pid),
    noteKey: randomBytes(32),
    images,
    logger,
    clock: systemClock,
  });
  for (const candidate of found) if ("provider" in candidate) opened.use(candidate.provider);
  const short = machine.find(({ id, level }) => id === "disk" && level === "fail");
  const candidates = found.map((candidate) => (short === undefined ? candidate : untried(candidate, short)));
  const checks = new CandidateChecks(candidates, { logger, ...(signal === undefined ? {} : { signal }) });
  const checked = await checks.all();
  // Whether a start would take native is not known then.
  const chosen =
    short !== undefined && config.providers.default === "auto"
      ? { used: [], default: undefined }
      : choose(checked, { config, logger });
  return await Promise.all(
    checked.map(async (entry) => {
      const { name, isolation } = entry.candidate;
      const check = entry.check ?? (await checkUnused(entry.candidate, signal));
      const error = check.error ?? check.cannotSpawn;
      return {
        name,
        isolation,
        works: check.healthy && check.cannotSpawn === undefined,
        ...(error === undefined ? {} : { error }),
        notes: check.notes,
        used: chosen.used.includes(name),
        default: chosen.default === name,
      };
    }),
  );
}

/** A sandbox of native's would take of the space that is missing, and be refused all the same. */
function untried(candidate: Candidate, short: DoctorCheck): Candidate {
  const { name, isolation, enabled } = candidate;
  return name === "native" ? { name, isolation, enabled, missing: `not tried: ${short.message}` } : candidate;
}

/** Providers that are switched off are tried as well: that they would work is worth knowing. */
async function checkUnused(candidate: Candidate, signal: AbortSignal | undefined): Promise<ProviderCheck> {
  if ("missing" in candidate) return { healthy: false, error: candidate.missing, notes: [] };
  using deadline = deadlineAfter(checkDeadlineMs, signal);
  return await candidate.provider.check(deadline);
}

/** What `serve` would choose at a first start: the database, which says what was there before, is not opened. */
function choose(
  checked: readonly CheckedCandidate[],
  options: { config: Config; logger: Logger },
): { used: string[]; default: string | undefined } {
  try {
    const root = process.getuid?.() === 0;
    const selection = selectProviders(checked, { ...options, root });
    return { used: selection.providers.map(({ name }) => name), default: selection.defaultName };
  } catch {
    // A default provider that cannot work here: the diagnosis says why.
    return { used: [], default: undefined };
  }
}
