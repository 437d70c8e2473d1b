import { hostname } from "node:os";
import type { Clock } from "../../ports/clock.ts";
import type { RuntimeProvider } from "../../ports/index.ts";
import { localWorkerId } from "../providers/provider-address.ts";
import type { Limits } from "../quotas/limits.ts";
import type { Drain } from "./drain.ts";

export interface WorkerFigures {
  readonly id: string;
  readonly hostname: string;
  readonly status: "online" | "draining";
  readonly providers: readonly string[];
  readonly capabilities: readonly string[];
  readonly capacity: { readonly maxSandboxes: number; readonly maxSandboxesPerOwner: number };
  readonly lastHeartbeat: Date;
  readonly createdAt: Date;
  readonly updatedAt: Date;
  readonly stale: boolean;
}

/** As often as workers give a sign of life. */
const heartbeatMs = 30_000;

/**
 * This process as a worker: for as long as it answers, so that its last sign of life is always now. It is `registered` from
 * the start; `removed` from the registry it stays out until its next heartbeat, and runs on all the same.
 */
export class LocalWorker {
  readonly #clock: Clock;
  readonly #limits: Pick<Limits, "current">;
  readonly #providers: readonly RuntimeProvider[];
  readonly #drain: Pick<Drain, "since">;
  #createdAt: Date;
  /** Monotonic; undefined: registered. */
  #outUntilMs: number | undefined;

  constructor(options: {
    clock: Clock;
    limits: Pick<Limits, "current">;
    providers: readonly RuntimeProvider[];
    drain: Pick<Drain, "since">;
  }) {
    this.#clock = options.clock;
    this.#limits = options.limits;
    this.#providers = options.providers;
    this.#drain = options.drain;
    this.#createdAt = options.clock.now();
  }

  get registered(): boolean {
    if (this.#outUntilMs !== undefined && this.#clock.monotonicMs() >= this.#outUntilMs) this.heartbeat();
    return this.#outUntilMs === undefined;
  }

  /** It gives a sign of life: one that was removed is there anew. */
  heartbeat(): void {
    if (this.#outUntilMs === undefined) return;
    this.#outUntilMs = undefined;
    this.#createdAt = this.#clock.now();
  }

  remove(): void {
    this.#outUntilMs = this.#clock.monotonicMs() + heartbeatMs;
  }

  get figures(): WorkerFigures {
    const limits = this.#limits.current("");
    const ofProviders = this.#providers.flatMap(({ capabilities }) => [...capabilities]);
    const now = this.#clock.now();
    return {
      id: localWorkerId,
      hostname: hostname(),
      status: this.#drain.since === undefined ? "online" : "draining",
      providers: this.#providers.map(({ name }) => name),
      capabilities: [...new Set(["api", "single_node", ...ofProviders])],
      capacity: {
        maxSandboxes: limits.all.sandboxes,
        maxSandboxesPerOwner: limits.owner.sandboxes,
      },
      lastHeartbeat: now,
      createdAt: this.#createdAt,
      updatedAt: now,
      stale: false,
    };
  }
}
