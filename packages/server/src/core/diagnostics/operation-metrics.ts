import { CallerGone, ShuttingDown } from "../../platform/deadline.ts";
import { Histogram } from "../../platform/metrics/histogram.ts";
import type { Clock } from "../../ports/clock.ts";
import { DomainError } from "../../ports/errors.ts";
import { Incidents } from "./incidents.ts";

/** What providers are asked to do, by the names that metrics have for it. */
export const operations = [
  "spawn",
  "destroy",
  "exec",
  "exec_stream",
  "file_write",
  "file_read",
  "file_list",
  "file_delete",
  "file_move",
  "file_chmod",
  "file_stat",
  "file_glob",
] as const;
export type Operation = (typeof operations)[number];

export interface OperationFigures {
  readonly operation: Operation;
  readonly provider: string;
  readonly succeeded: number;
  readonly failed: number;
  /** Milliseconds; 0 before the first. */
  readonly shortestMs: number;
  readonly longestMs: number;
  readonly latencies: Histogram;
}

type Counted = { -readonly [K in keyof OperationFigures]: OperationFigures[K] };

const latencyBoundsMs = [1, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000];
const failures: ReadonlySet<string> = new Set([
  "provider_error",
  "unavailable",
  "remote_worker_rpc_unavailable",
  "internal",
]);

/**
 * How often providers did what they were asked to, how often they failed, and how long it took. What is refused to a
 * caller (4xx), and what its caller or a stop of the service broke off, is neither. One small entry per operation and
 * provider, all there from the start.
 */
export class OperationMetrics {
  /** What happened to sandboxes without being asked for. */
  readonly incidents = new Incidents();
  readonly #clock: Pick<Clock, "monotonicMs">;
  readonly #counted = new Map<Operation, Map<string, Counted>>();

  constructor(options: { clock: Pick<Clock, "monotonicMs">; providers: readonly string[] }) {
    this.#clock = options.clock;
    for (const operation of operations)
      for (const provider of options.providers) this.#of(operation, provider);
  }

  get all(): OperationFigures[] {
    return [...this.#counted.values()].flatMap((byProvider) => [...byProvider.values()]);
  }

  succeeded(operation: Operation, provider: string, ms: number): void {
    const counted = this.#of(operation, provider);
    counted.succeeded++;
    took(counted, ms);
  }

  /** Counts it when `error` is the provider's doing. */
  failed(operation: Operation, provider: string, ms: number, error: unknown): void {
    if (!isProviderFailure(error)) return;
    const counted = this.#of(operation, provider);
    counted.failed++;
    took(counted, ms);
  }

  /** Runs `task` and counts what comes of it, unless `signal` has broken it off. */
  async measure<T>(
    operation: Operation,
    provider: string,
    task: () => Promise<T>,
    signal?: AbortSignal,
  ): Promise<T> {
    const startedMs = this.#clock.monotonicMs();
    try {
      const result = await task();
      this.succeeded(operation, provider, this.#clock.monotonicMs() - startedMs);
      return result;
    } catch (error) {
      if (signal?.aborted !== true)
        this.failed(operation, provider, this.#clock.monotonicMs() - startedMs, error);
      throw error;
    }
  }

  #of(operation: Operation, provider: string): Counted {
    let byProvider = this.#counted.get(operation);
    if (byProvider === undefined) {
      byProvider = new Map();
      this.#counted.set(operation, byProvider);
    }
    let counted = byProvider.get(provider);
    if (counted === undefined) {
      const latencies = new Histogram(latencyBoundsMs);
      counted = { operation, provider, succeeded: 0, failed: 0, shortestMs: 0, longestMs: 0, latencies };
      byProvider.set(provider, counted);
    }
    return counted;
  }
}

function took(counted: Counted, ms: number): void {
  counted.shortestMs = counted.latencies.count === 0 ? ms : Math.min(counted.shortestMs, ms);
  counted.longestMs = Math.max(counted.longestMs, ms);
  counted.latencies.observe(ms);
}

function isProviderFailure(error: unknown): boolean {
  if (error instanceof CallerGone || error instanceof ShuttingDown) return false;
  return !(error instanceof DomainError) || failures.has(error.code);
}
