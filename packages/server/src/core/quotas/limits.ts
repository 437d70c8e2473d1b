import type { CapacityLimits, CapacityRules, QuotaRow } from "../../ports/index.ts";
import type { SandboxDefaults } from "./sandbox-defaults.ts";

/** What one owner may have; 0: no limit. */
export interface OwnerLimits extends CapacityLimits {
  maxTtlMs: number;
  /** Whose quota says so; absent: the configuration does. */
  ttlQuotaOf?: string;
  maxExecTimeoutMs: number;
}

/** What there is to share; 0: not known. */
export interface Machine {
  memoryMb: number;
  vcpus: number;
}

export const unknownMachine: Machine = { memoryMb: 0, vcpus: 0 };

/** The quotas of owners, as they stand now. */
export interface QuotaLookup {
  of(ownerId: string): QuotaRow | undefined;
}

export const noQuotas: QuotaLookup = { of: () => undefined };

/** The one place limits come from. They are read when they are applied, inside the reservation too, and never kept. */
export class Limits implements CapacityRules {
  readonly #defaults: SandboxDefaults;
  readonly #quotas: QuotaLookup;
  readonly #machine: Machine;

  constructor(
    defaults: SandboxDefaults,
    { quotas = noQuotas, machine = unknownMachine }: { quotas?: QuotaLookup; machine?: Machine } = {},
  ) {
    this.#defaults = defaults;
    this.#quotas = quotas;
    this.#machine = machine;
  }

  /** What one sandbox can have at most; 0: no limit. */
  get largest(): Machine {
    const { maxMemoryMb, maxVcpus } = this.#defaults;
    return { memoryMb: maxMemoryMb || this.#machine.memoryMb, vcpus: maxVcpus || this.#machine.vcpus };
  }

  /** @param ownerId empty: nobody's. */
  current(ownerId: string): OwnerLimits {
    return this.of(ownerId, this.#quotas.of(ownerId));
  }

  /** @param quota the owner's, as the caller has read it just now; undefined: there is none. */
  of(ownerId: string, quota: QuotaRow | undefined): OwnerLimits {
    const defaults = this.#defaults;
    return {
      all: {
        sandboxes: defaults.maxSandboxes,
        memoryMb: defaults.maxMemoryMb || this.#machine.memoryMb * defaults.memoryOvercommit,
        vcpus: defaults.maxVcpus || this.#machine.vcpus * defaults.vcpuOvercommit,
      },
      owner: {
        sandboxes: quota?.maxSandboxes || defaults.maxSandboxesPerOwner,
        memoryMb: quota?.maxMemoryMb ?? 0,
        vcpus: quota?.maxVcpus ?? 0,
      },
      maxTtlMs: quota?.maxTtlMs || defaults.maxTtlMs,
      ...(quota?.maxTtlMs ? { ttlQuotaOf: ownerId } : {}),
      maxExecTimeoutMs: quota?.maxExecTimeoutMs || defaults.maxExecTimeoutMs,
    };
  }
}
