import { hostname } from "node:os";
import type { Clock } from "../../ports/clock.ts";
import type { RuntimeProvider } from "../../ports/index.ts";
import { localWorkerId } from "../providers/provider-address.ts";
import type { Limits } from "../quotas/limits.ts";

export interface WorkerFigures {
  readonly id: string;
  readonly hostname: string;
  readonly status: "online";
  readonly providers: readonly string[];
  readonly capabilities: readonly string[];
  readonly capacity: { readonly maxSandboxes: number; readonly maxSandboxesPerOwner: number };
  readonly lastHeartbeat: Date;
  readonly createdAt: Date;
  readonly updatedAt: Date;
  readonly stale: boolean;
}

/** This process as a worker: online for as long as it answers, so that its last sign of life is always now. */
export class LocalWorker {
  readonly #clock: Clock;
  readonly #limits: Pick<Limits, "current">;
  readonly #providers: readonly RuntimeProvider[];
  readonly #startedAt: Date;

  constructor(options: {
    clock: Clock;
    limits: Pick<Limits, "current">;
    providers: readonly RuntimeProvider[];
  }) {
    this.#clock = options.clock;
    this.#limits = options.limits;
    this.#providers = options.providers;
    this.#startedAt = options.clock.now();
  }

  get figures(): WorkerFigures {
    const limits = this.#limits.current("");
    const ofProviders = this.#providers.flatMap(({ capabilities }) => [...capabilities]);
    const now = this.#clock.now();
    return {
      id: localWorkerId,
      hostname: hostname(),
      status: "online",
      providers: this.#providers.map(({ name }) => name),
      capabilities: [...new Set(["api", "single_node", ...ofProviders])],
      capacity: {
        maxSandboxes: limits.all.sandboxes,
        maxSandboxesPerOwner: limits.owner.sandboxes,
      },
      lastHeartbeat: now,
      createdAt: this.#startedAt,
      updatedAt: now,
      stale: false,
    };
  }
}
