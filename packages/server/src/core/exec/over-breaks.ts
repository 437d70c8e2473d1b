import { setTimeout as pause } from "node:timers/promises";
import type { Clock } from "../../ports/clock.ts";
import { RuntimeGone, Unavailable } from "../../ports/errors.ts";
import type { CallOptions, ExecOperations } from "../../ports/sandbox-operations.ts";
import type { ExecTarget } from "./exec-target.ts";
import type { ExecTracker } from "./exec-tracker.ts";

/** How long a sandbox may take to be connected to anew, how often that is looked for, and how often something is done again. */
const connectMs = 10_000;
const connectPauseMs = 50;
const mostTries = 5;

/** Does things in sandboxes whose connection may break and be made anew meanwhile. */
export class OverBreaks {
  readonly #tracker: Pick<ExecTracker, "follows">;
  readonly #clock: Clock;

  constructor(options: { tracker: Pick<ExecTracker, "follows">; clock: Clock }) {
    this.#tracker = options.tracker;
    this.#clock = options.clock;
  }

  /**
   * Does something in a sandbox, and again when the sandbox was connected to anew meanwhile, which cuts what is under way.
   * `act` is told when it may have been done before.
   */
  async perform<T>(
    { row, operations }: ExecTarget,
    { signal }: CallOptions,
    act: (execs: ExecOperations, again: boolean) => Promise<T>,
  ): Promise<T> {
    let execs = operations.execs;
    for (let tries = 1; ; tries += 1) {
      try {
        return await act(execs, tries > 1);
      } catch (error) {
        if (!(error instanceof RuntimeGone) || tries >= mostTries) throw error;
        const anew = await this.#connectedAnew({ row, operations }, execs, signal);
        if (anew === undefined) throw error;
        execs = anew;
      }
    }
  }

  /** @returns the commands of a sandbox over another connection than before; undefined when that is the same, or the sandbox ended. */
  async #connectedAnew(
    { row, operations }: ExecTarget,
    before: ExecOperations,
    signal: AbortSignal,
  ): Promise<ExecOperations | undefined> {
    const deadlineMs = this.#clock.monotonicMs() + connectMs;
    while (!signal.aborted && this.#clock.monotonicMs() < deadlineMs) {
      await pause(connectPauseMs, undefined, { ref: false });
      if (!this.#tracker.follows(row.id)) return undefined;
      try {
        const { execs } = operations;
        return execs === before ? undefined : execs;
      } catch (error) {
        // There is none at the moment.
        if (!(error instanceof Unavailable)) return undefined;
      }
    }
    return undefined;
  }
}
