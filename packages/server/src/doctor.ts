import { chmod, mkdtemp, rm } from "node:fs/promises";
import path from "node:path";
import type { Config } from "./config/config.ts";
import type { Isolation } from "./config/providers.ts";
import { checkMachine, type DoctorCheck, nearestFolder } from "./doctor/machine.ts";
import { imageSettings, openImageStore } from "./images.ts";
import { deadlineAfter } from "./platform/deadline.ts";
import type { Logger } from "./platform/logger.ts";
import { systemClock } from "./platform/system-clock.ts";
import type { ProviderCheck } from "./ports/index.ts";
import { type Candidate, providerCandidates } from "./provider-candidates.ts";
import { type CheckedCandidate, checkCandidates, selectProviders } from "./provider-selection.ts";

export type { DoctorCheck } from "./doctor/machine.ts";

export interface ProviderDiagnosis {
  name: string;
  /** It could run sandboxes here. */
  isolation: Isolation;
  works: boolean;
  /** Why it cannot, and the way out. */
  error?: string;
  notes: string[];
  /** The service would use it as it is configured now. */
  used: boolean;
  default: boolean;
}

export interface Diagnosis {
  /** Something isolates here, and nothing stands in the way of a start. */
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
}): Promise<Diagnosis> {
  const { env, logger, installed = false } = options;
  const machine = await checkMachine({ config: options.config, env, installed });
  if (machine.some(({ id, level }) => id === "data-dir" && level === "fail")) {
    return { ok: false, machine, providers: [] };
  }
  await using opened = new AsyncDisposableStack();
  // Looking leaves nothing, and nothing of a service that runs is touched: what is tried is tried in a place of its own,
  // on the file system of data_dir, because that decides as well.
  const dataDir = await mkdtemp(path.join(await nearestFolder(options.config.dataDir), ".alcove-doctor-"));
  opened.defer(() => rm(dataDir, { recursive: true, force: true }));
  await chmod(dataDir, 0o711);
  const config = { ...options.config, dataDir };
  const images = await openImageStore({ ...imageSettings(config), logger });
  const candidates = await providerCandidates({
    config,
    instanceId: `doctor${process.pid}`,
    images,
    logger,
    clock: systemClock,
  });
  for (const candidate of candidates) if ("provider" in candidate) opened.use(candidate.provider);
  const checked = await checkCandidates(candidates, { logger });
  const chosen = choose(checked, { config, logger });
  const providers = await Promise.all(
    checked.map(async (entry) => {
      const { name, isolation } = entry.candidate;
      const { healthy, error, notes } = entry.check ?? (await checkUnused(entry.candidate));
      return {
        name,
        isolation,
        works: healthy,
        ...(error === undefined ? {} : { error }),
        notes,
        used: chosen.used.includes(name),
        default: chosen.default === name,
      };
    }),
  );
  const isolates = providers.some(({ works, isolation }) => works && isolation !== "simulated");
  return { ok: isolates && machine.every(({ level }) => level !== "fail"), machine, providers };
}

/** Providers that are switched off are tried as well: that they would work is worth knowing. */
async function checkUnused(candidate: Candidate): Promise<ProviderCheck> {
  if ("missing" in candidate) return { healthy: false, error: candidate.missing, notes: [] };
  using deadline = deadlineAfter(checkDeadlineMs);
  return await candidate.provider.check(deadline);
}

/** What `serve` would choose. */
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
