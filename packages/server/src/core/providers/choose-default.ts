import type { Isolation } from "../../config/providers.ts";
import type { ProviderCheck } from "../../ports/runtime-provider.ts";

export interface ProviderCandidate {
  name: string;
  isolation: Isolation;
  /** undefined: this provider is not to be considered, for the reason in `excluded`. */
  check: ProviderCheck | undefined;
  excluded?: string;
  /** It has not answered yet, or could not be tried: whether it works is not known. */
  unanswered?: boolean;
  /** How many of its sandboxes are there. */
  sandboxes?: number;
}

export interface DefaultChoice {
  name: string;
  /** Why each provider before the chosen one was not taken. */
  against: { name: string; reason: string }[];
  /** Why each provider after it was not looked at further. */
  passedOver: string[];
  /** What somebody should know of the choice: to be logged loudly. */
  warnings: string[];
}

const warnings: Readonly<Record<Isolation, ((name: string) => string) | undefined>> = {
  enforced: undefined,
  hosted: undefined,
  none: (name) => `${name} isolates next to nothing: run only code you trust`,
  simulated: (name) => `no provider that runs real programs works here, so sandboxes are SIMULATED (${name})`,
};

/**
 * Chooses the default provider, once, at start. The one of the last start stays as long as sandboxes of it are there, however
 * it is. Otherwise it is the first candidate that works, in the order given (firecracker, native, docker, proot, mock); the one of the
 * last start keeps its turn when it has only not answered yet or could not be tried, and before a simulation comes whoever has
 * not, or has sandboxes here, however it is.
 * docs/decisions/operating.md.
 * @param options.last the default of the last start.
 * @throws Error naming every reason when none works.
 */
export function chooseDefault(
  candidates: readonly ProviderCandidate[],
  options: { last?: string | undefined } = {},
): DefaultChoice {
  const against: DefaultChoice["against"] = [];
  const chosen = pick(candidates, options.last);
  for (const candidate of candidates) {
    if (candidate === chosen) break;
    against.push({ name: candidate.name, reason: reasonAgainst(candidate, chosen) });
  }
  if (chosen === undefined) {
    const reasons = against.map(({ name, reason }) => `${name}: ${reason}`).join("; ");
    throw new Error(`no provider works here (${reasons}); run "alcove doctor" for the way out`);
  }
  const passedOver = candidates.slice(candidates.indexOf(chosen) + 1).map(({ name }) => name);
  return { name: chosen.name, against, passedOver, warnings: warningsOf(chosen, candidates, options.last) };
}

/** Whether the choice is the same whatever those say who have not answered yet. */
export function defaultIsCertain(
  candidates: readonly ProviderCandidate[],
  options: { last?: string | undefined } = {},
): boolean {
  if (staying(candidates, options.last) !== undefined) return true;
  return candidates.find((one) => one.unanswered === true || isolatesNow(one))?.unanswered !== true;
}

function pick(candidates: readonly ProviderCandidate[], last: string | undefined) {
  return (
    staying(candidates, last) ??
    candidates.find((one) => isolatesNow(one) || keepsItsTurn(one, last)) ??
    candidates.find(({ unanswered }) => unanswered === true) ??
    candidates.find(hasSandboxes) ??
    candidates.find(works)
  );
}

function staying(candidates: readonly ProviderCandidate[], last: string | undefined) {
  return candidates.find((one) => one.name === last && hasSandboxes(one));
}

/** And it may be used. A simulation's are none: they end with its process. */
function hasSandboxes({ isolation, check, sandboxes = 0 }: ProviderCandidate): boolean {
  return isolation !== "simulated" && check !== undefined && sandboxes > 0;
}

/** It has only not answered yet, or could not be tried, and was the default before; where nobody wrote that down, its sandboxes tell. */
function keepsItsTurn({ name, unanswered, sandboxes = 0 }: ProviderCandidate, last: string | undefined) {
  return unanswered === true && (name === last || (last === undefined && sandboxes > 0));
}

function isolatesNow(candidate: ProviderCandidate): boolean {
  return works(candidate) && candidate.isolation !== "simulated";
}

function works({ check }: ProviderCandidate): boolean {
  return check?.healthy === true;
}

function warningsOf(
  chosen: ProviderCandidate,
  candidates: readonly ProviderCandidate[],
  last: string | undefined,
): string[] {
  const { name, isolation, check, unanswered, sandboxes = 0 } = chosen;
  const isolates = warnings[isolation]?.(name);
  const found = isolates === undefined ? [] : [isolates];
  const changeIt = "to have another one, name it in providers.default and restart";
  if (check?.healthy === false) {
    const silent = unanswered === true && check.untried !== true;
    const how = silent ? "has not answered yet" : `is not healthy: ${check.error}`;
    const before = name === last ? "it was the default before, and " : "";
    const why = sandboxes > 0 ? `; ${before}${sandboxes} sandboxes of it are here` : "";
    found.push(
      `the default provider is ${name}, which ${how}${why}. Spawns that name no provider are refused until it works; ${changeIt}`,
    );
  } else if (last !== undefined && last !== name) {
    const former = candidates.find((candidate) => candidate.name === last);
    const reason = former === undefined ? "it is no more" : reasonToLeave(former, chosen);
    found.push(
      `the default provider is ${name} now; at the last start it was ${last} (${reason}); ${changeIt}`,
    );
  }
  return found;
}

/** Of the default of the last start, which is another one now: it had nothing to stay for. */
function reasonToLeave(former: ProviderCandidate, chosen: ProviderCandidate): string {
  if (former.isolation === "simulated") return "a simulation, which is never stayed on";
  if (former.check?.healthy !== true) return reasonAgainst(former, chosen);
  return `no sandboxes of it are here, and ${chosen.name} comes before it`;
}

function reasonAgainst(candidate: ProviderCandidate, chosen: ProviderCandidate | undefined): string {
  if (candidate.check === undefined) return candidate.excluded ?? "it is not enabled";
  if (candidate.check.healthy)
    return chosen?.sandboxes ? `sandboxes of ${chosen.name}, the default before, are here` : "it comes later";
  return candidate.check.error ?? "its check failed without a reason";
}
