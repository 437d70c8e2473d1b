import type { CapacityLimits, CapacityRules, QuotaRow } from "../../ports/index.ts";
import type { SandboxDefaults } from "./sandbox-defaults.ts";

/** What one owner may have; 0: no limit. */
export interface OwnerLimits extends CapacityLimits {
  maxTtlMs: number;
  maxExecTimeoutMs: number;
}

/** The quotas of owners, as they stand now. */
export interface QuotaLookup {
  of(ownerId: string): QuotaRow | undefined;
}

export const noQuotas: QuotaLookup = { of: () => undefined };

/** The one place limits come from. They are read when they are applied, inside the reservation too, and never kept. */
export class Limits implements CapacityRules {
  readonly #defaults: SandboxDefaults;
  readonly #quotas: QuotaLookup;

  constructor(defaults: SandboxDefaults, quotas: QuotaLookup = noQuotas) {
    this.#defaults = defaults;
    this.#quotas = quotas;
  }

  /**
   * @param ownerId empty: nobody's.
   * @param read the owner's quota, where the caller has read it just now; undefined then means that there is none.
   */
  of(ownerId: string, ...read: [quota: QuotaRow | undefined] | []): OwnerLimits {
    const quota = read.length === 0 ? this.#quotas.of(ownerId) : read[0];
    const defaults = this.#defaults;
    return {
      all: { sandboxes: defaults.maxSandboxes, memoryMb: 0, vcpus: 0 },
      owner: {
        sandboxes: quota?.maxSandboxes || defaults.maxSandboxesPerOwner,
        memoryMb: quota?.maxMemoryMb ?? 0,
        vcpus: quota?.maxVcpus ?? 0,
      },
      maxTtlMs: quota?.maxTtlMs || defaults.maxTtlMs,
      maxExecTimeoutMs: quota?.maxExecTimeoutMs || defaults.maxExecTimeoutMs,
    };
  }
}
