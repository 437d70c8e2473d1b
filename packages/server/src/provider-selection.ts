import type { CheckedCandidate, StillOpen } from "./candidate-checks.ts";
import type { Config } from "./config/config.ts";
import { chooseDefault, defaultIsCertain, type ProviderCandidate } from "./core/providers/choose-default.ts";
import type { Logger } from "./platform/logger.ts";
import type { RuntimeProvider } from "./ports/index.ts";
import type { ProvidersBefore } from "./providers-before.ts";

export interface ProviderSelection {
  providers: RuntimeProvider[];
  defaultName: string;
  /** Each provider that is used but takes no spawns now, and why: it failed, has not answered, or lacks something. */
  failing: { name: string; reason: string }[];
  /** Each provider that is not used, and why. `tried`: it was found not to work. */
  refused: { name: string; reason: string; tried: boolean }[];
  /** What is to be known of a provider for as long as this process runs, by name. */
  notes: Map<string, string>;
}

const nothingBefore: ProvidersBefore = { lastDefault: undefined, sandboxes: new Map() };

/** What those may still change who have not answered yet: which provider is the default, or only how the default is. */
export function stillOpen(
  known: readonly CheckedCandidate[],
  options: { config: Config; root: boolean; before: ProvidersBefore },
): StillOpen {
  const { config, before } = options;
  const wanted = config.providers.default;
  const isNamed = wanted !== "auto";
  if (!isNamed && !defaultIsCertain(forChoice(known, options), { last: before.lastDefault })) return "choice";
  const unanswered = (name: string) =>
    known.some((one) => one.candidate.name === name && one.unanswered === true);
  if (isNamed) return unanswered(wanted) ? "default" : "nothing";
  // What is certain though it has not answered is the one of the last start, because its sandboxes are here.
  const { lastDefault: last, sandboxes } = before;
  return last !== undefined && sandboxes.has(last) && unanswered(last) ? "default" : "nothing";
}

/**
 * Which providers this process uses and which is the default, decided once. A provider that was asked for, or whose
 * sandboxes are there, is used even when it is ill now; native and docker are otherwise used unless they were found not to
 * work: one that has only not answered yet is brought back by the registry. docs/architecture.md.
 * @throws Error when the default cannot be used.
 */
export function selectProviders(
  checked: readonly CheckedCandidate[],
  options: { config: Config; root: boolean; logger: Logger; before?: ProvidersBefore },
): ProviderSelection {
  const { config, logger, before = nothingBefore } = options;
  const wanted = config.providers.default;
  const defaultName = wanted === "auto" ? chosenByItself(checked, { ...options, before }) : wanted;
  const selection: ProviderSelection = {
    providers: [],
    defaultName,
    failing: [],
    refused: [],
    notes: new Map(),
  };
  for (const { candidate, check, excluded, unanswered } of checked) {
    const { name } = candidate;
    const kept =
      check !== undefined &&
      (check.healthy || unanswered === true || candidate.enabled === true || before.sandboxes.has(name));
    const reason = excluded ?? check?.error ?? "it does not work here";
    if ("provider" in candidate && (kept || name === defaultName)) {
      selection.providers.push(candidate.provider);
      const failing = check?.error ?? check?.cannotSpawn;
      if (failing !== undefined) selection.failing.push({ name, reason: failing });
      if (check?.healthy === false) warnOfIllness({ name, reason, before, logger });
    } else {
      selection.refused.push({ name, reason, tried: candidate.enabled !== false });
    }
  }
  const unusable = selection.refused.find(({ name }) => name === defaultName);
  if (unusable !== undefined)
    throw new Error(`providers.default is ${defaultName}, which cannot be used: ${unusable.reason}`);
  const isSimulated = checked.some(
    ({ candidate }) => candidate.name === defaultName && candidate.isolation === "simulated",
  );
  if (wanted === "auto" && isSimulated) selection.notes.set(defaultName, standIn(selection.refused));
  const notUsed = selection.refused.map(({ name, reason }) => ({ name, reason }));
  logger.info({ default: defaultName, not_used: notUsed }, "providers chosen");
  return selection;
}

function standIn(refused: ProviderSelection["refused"]): string {
  const tried = refused.filter((one) => one.tried).map(({ name, reason }) => `${name}: ${reason}`);
  const why = tried.length === 0 ? "" : ` (${tried.join("; ")})`;
  return (
    `it is the default because nothing that runs programs worked when the service started${why}: ` +
    "mend one, which alcove doctor says how to, and restart; or name the one that is wanted in providers.default"
  );
}

function warnOfIllness(ill: { name: string; reason: string; before: ProvidersBefore; logger: Logger }): void {
  const { name, reason, before, logger } = ill;
  logger.warn(
    { provider: name, reason, sandboxes: before.sandboxes.get(name) ?? 0 },
    `provider ${name} takes no sandboxes until it answers and is well: ${reason}; it is looked at again and again. ` +
      `providers.${name}.enabled: false leaves it out`,
  );
}

/** Weak isolation is never chosen unasked, but for `mock` when nothing else works: it has no access to anything. */
function chosenByItself(
  checked: readonly CheckedCandidate[],
  options: { root: boolean; logger: Logger; before: ProvidersBefore },
): string {
  const { logger, before } = options;
  const choice = chooseDefault(forChoice(checked, options), { last: before.lastDefault });
  for (const warning of choice.warnings) {
    logger.warn({ against: choice.against }, `${warning}; see alcove doctor for the way out`);
  }
  return choice.name;
}

function forChoice(
  checked: readonly CheckedCandidate[],
  { root, before }: { root: boolean; before: ProvidersBefore },
): ProviderCandidate[] {
  return checked.map(({ candidate, check, excluded, unanswered = false }) => {
    const { name, isolation } = candidate;
    if (isolation === "simulated") return { name, isolation, check: { healthy: true, notes: [] } };
    if (isolation === "hosted") {
      const never = "auto never takes it: name it as providers.default";
      return { name, isolation, check: undefined, excluded: never };
    }
    if (isolation === "none" && root)
      return { name, isolation, check: undefined, excluded: "auto never takes it as root" };
    const sandboxes = before.sandboxes.get(name) ?? 0;
    return { name, isolation, check, unanswered, sandboxes, ...(excluded === undefined ? {} : { excluded }) };
  });
}
