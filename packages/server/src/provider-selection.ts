import type { Config } from "./config/config.ts";
import { chooseDefault } from "./core/providers/choose-default.ts";
import { deadlineAfter } from "./platform/deadline.ts";
import type { Logger } from "./platform/logger.ts";
import type { ProviderCheck, RuntimeProvider } from "./ports/index.ts";
import type { Candidate } from "./provider-candidates.ts";

const checkDeadlineMs = 10_000;
const patienceMs = 5_000;

export interface CheckedCandidate {
  candidate: Candidate;
  /** undefined: it was not tried, for the reason in `excluded`. */
  check: ProviderCheck | undefined;
  excluded?: string;
}

export interface ProviderSelection {
  providers: RuntimeProvider[];
  defaultName: string;
  /** Each provider that is not used, and why. */
  refused: { name: string; reason: string }[];
}

/** Tries every candidate that may be used, all at once, and says whom it waits for. Never throws. */
export function checkCandidates(
  candidates: readonly Candidate[],
  options: { logger: Logger; signal?: AbortSignal },
): Promise<CheckedCandidate[]> {
  return Promise.all(candidates.map((candidate) => checkCandidate(candidate, options)));
}

async function checkCandidate(
  candidate: Candidate,
  { logger, signal }: { logger: Logger; signal?: AbortSignal },
): Promise<CheckedCandidate> {
  if ("missing" in candidate) return { candidate, check: undefined, excluded: candidate.missing };
  const { name } = candidate;
  if (candidate.enabled === false) {
    const excluded = `it must be asked for: providers.${name}.enabled: true`;
    return { candidate, check: undefined, excluded };
  }
  using deadline = deadlineAfter(checkDeadlineMs, signal);
  let waitedMs = 0;
  const waiting = setInterval(() => {
    waitedMs += patienceMs;
    logger.warn(
      { provider: name, waited_ms: waitedMs },
      `waiting for provider ${name}, which tries a sandbox`,
    );
  }, patienceMs);
  try {
    return { candidate, check: await candidate.provider.check(deadline) };
  } finally {
    clearInterval(waiting);
  }
}

/**
 * Which providers this process uses and which is the default, decided once. A provider that was asked for is used
 * even when it is ill now; native and docker are otherwise used when they work. docs/architecture.md.
 * @throws Error when the default cannot be used.
 */
export function selectProviders(
  checked: readonly CheckedCandidate[],
  options: { config: Config; root: boolean; logger: Logger },
): ProviderSelection {
  const { config, logger } = options;
  const wanted = config.providers.default;
  const providers: RuntimeProvider[] = [];
  const refused: ProviderSelection["refused"] = [];
  for (const { candidate, check, excluded } of checked) {
    const { name } = candidate;
    if ("provider" in candidate && (candidate.enabled === true || check?.healthy === true)) {
      providers.push(candidate.provider);
    } else {
      refused.push({ name, reason: excluded ?? check?.error ?? "it does not work here" });
    }
  }
  const defaultName = wanted === "auto" ? chosenByItself(checked, options) : wanted;
  const chosen = checked.find(({ candidate }) => candidate.name === defaultName)?.candidate;
  if (chosen === undefined || !("provider" in chosen)) {
    const why = refused.find(({ name }) => name === defaultName)?.reason;
    throw new Error(`providers.default is ${defaultName}, which cannot be used: ${why}`);
  }
  if (!providers.includes(chosen.provider)) providers.push(chosen.provider);
  const others = refused.filter(({ name }) => name !== defaultName);
  logger.info({ default: defaultName, not_used: others }, "providers chosen");
  return { providers, defaultName, refused: others };
}

/** Weak isolation is never chosen unasked, but for `mock` when nothing else works: it has no access to anything. */
function chosenByItself(
  checked: readonly CheckedCandidate[],
  options: { root: boolean; logger: Logger },
): string {
  const choice = chooseDefault(
    checked.map(({ candidate, check, excluded }) => {
      const { name, isolation } = candidate;
      if (isolation === "simulated") return { name, isolation, check: { healthy: true, notes: [] } };
      if (isolation === "none" && options.root)
        return { name, isolation, check: undefined, excluded: "auto never takes it as root" };
      return { name, isolation, check, ...(excluded === undefined ? {} : { excluded }) };
    }),
  );
  if (choice.warning !== undefined) {
    options.logger.warn({ against: choice.against }, `${choice.warning}; see alcove doctor for the way out`);
  }
  return choice.name;
}
