import type { CapacityRules } from "../../ports/store.ts";
import type { SandboxDefaults } from "./sandbox-defaults.ts";

/** What one owner may have; 0: no limit. */
export interface OwnerLimits {
  maxSandboxes: number;
  maxSandboxesPerOwner: number;
  maxTtlMs: number;
  maxExecTimeoutMs: number;
}

/** The one place limits come from. They are read when they are applied, inside the reservation too, and never kept. */
export class Limits implements CapacityRules {
  readonly #defaults: SandboxDefaults;

  constructor(defaults: SandboxDefaults) {
    this.#defaults = defaults;
  }

  /** @param _ownerId empty: nobody's. */
  of(_ownerId: string): OwnerLimits {
    const { maxSandboxes, maxSandboxesPerOwner, maxTtlMs, maxExecTimeoutMs } = this.#defaults;
    return { maxSandboxes, maxSandboxesPerOwner, maxTtlMs, maxExecTimeoutMs };
  }
}
