import type { Isolation } from "../../config/providers.ts";
import type { ProviderCheck } from "../../ports/runtime-provider.ts";

export interface ProviderCandidate {
  name: string;
  isolation: Isolation;
  /** undefined: this provider is not to be considered, for the reason in `excluded`. */
  check: ProviderCheck | undefined;
  excluded?: string;
}

export interface DefaultChoice {
  name: string;
  /** Why each provider before the chosen one was not taken. */
  against: { name: string; reason: string }[];
  /** Why each provider after it was not looked at further. */
  passedOver: string[];
  /** Set when the choice gives no isolation: to be logged loudly. */
  warning?: string;
}

const warnings: Readonly<Record<Isolation, ((name: string) => string) | undefined>> = {
  enforced: undefined,
  none: (name) => `${name} isolates next to nothing: run only code you trust`,
  simulated: (name) => `no provider that runs real programs works here, so sandboxes are SIMULATED (${name})`,
};

/**
 * Chooses the default provider, once, at start: the first candidate that works, in the order given (native, docker,
 * proot, mock). docs/architecture.md.
 * @throws Error naming every reason when none works.
 */
export function chooseDefault(candidates: readonly ProviderCandidate[]): DefaultChoice {
  const against: DefaultChoice["against"] = [];
  for (const [index, candidate] of candidates.entries()) {
    const reason = reasonAgainst(candidate);
    if (reason !== undefined) {
      against.push({ name: candidate.name, reason });
      continue;
    }
    const warning = warnings[candidate.isolation]?.(candidate.name);
    const passedOver = candidates.slice(index + 1).map(({ name }) => name);
    return { name: candidate.name, against, passedOver, ...(warning === undefined ? {} : { warning }) };
  }
  const reasons = against.map(({ name, reason }) => `${name}: ${reason}`).join("; ");
  throw new Error(`no provider works here (${reasons}); run "alcove doctor" for the way out`);
}

function reasonAgainst(candidate: ProviderCandidate): string | undefined {
  if (candidate.check === undefined) return candidate.excluded ?? "it is not enabled";
  if (candidate.check.healthy) return undefined;
  return candidate.check.error ?? "its check failed without a reason";
}
