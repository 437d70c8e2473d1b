import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import type { Clock } from "../../ports/clock.ts";
import { Conflict, NotFound } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecTracker } from "./exec-tracker.ts";
import type { RunningSandboxes } from "./running-sandboxes.ts";

const callDeadlineMs = 10_000;
/** Who starts a command, or goes on with its input, has so long to be known at the least. */
const leastGraceMs = 1_000;

/**
 * Commands whose input was to come whole and has not, while nobody here has the rest of it: the service that had was killed.
 * Whoever gave it may give it again within a grace, which begins anew when more has come. Then the command is ended: neither may
 * it wait for ever, nor may it take a part for the whole.
 */
export class LostInputs implements Disposable {
  readonly #sandboxes: Pick<RunningSandboxes, "locate">;
  readonly #tracker: Pick<ExecTracker, "knows" | "sawExit">;
  readonly #holds: (sandboxId: string, execId: ExecId) => boolean;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #graceMs: number;
  readonly #watched = new Set<string>();
  readonly #closing = new AbortController();

  constructor(options: {
    sandboxes: Pick<RunningSandboxes, "locate">;
    tracker: Pick<ExecTracker, "knows" | "sawExit">;
    /** Whether somebody here goes on with the input of that command. */
    holds: (sandboxId: string, execId: ExecId) => boolean;
    clock: Clock;
    logger: Logger;
    graceMs: number;
  }) {
    this.#sandboxes = options.sandboxes;
    this.#tracker = options.tracker;
    this.#holds = options.holds;
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#graceMs = Math.max(options.graceMs, leastGraceMs);
  }

  [Symbol.dispose](): void {
    this.#closing.abort();
  }

  /** Looks after the input of a command, for as long as that runs and may be missing some. */
  watch(sandboxId: string, execId: ExecId): void {
    const key = `${sandboxId} ${execId}`;
    if (this.#watched.has(key)) return;
    this.#watched.add(key);
    void this.#watch(sandboxId, execId).finally(() => this.#watched.delete(key));
  }

  async #watch(sandboxId: string, execId: ExecId): Promise<void> {
    const { signal } = this.#closing;
    let before: number | undefined;
    for (let first = true; ; first = false) {
      if (!first) await this.#pause();
      if (signal.aborted || !this.#tracker.knows(sandboxId, execId)) return;
      try {
        const missing = await this.#missing(sandboxId, execId);
        if (missing === undefined) return;
        const unchanged = !first && missing === before;
        before = this.#holds(sandboxId, execId) ? undefined : missing;
        if (before === undefined) continue;
        if (missing > 0 && !unchanged) continue;
        await this.#end(sandboxId, execId, missing);
        return;
      } catch (error) {
        this.#logger.debug(
          { exec_id: execId, err: error },
          "the input of a command could not be looked after",
        );
        // Anything else may pass, such as an agent that stands still: it is asked again after a pause.
        if (error instanceof NotFound || error instanceof Conflict) return;
      }
    }
  }

  /** @returns how many bytes of its input have not come, 0 when only the end of it has not; undefined: nothing is missing. */
  async #missing(sandboxId: string, execId: ExecId): Promise<number | undefined> {
    using deadline = deadlineAfter(callDeadlineMs, this.#closing.signal);
    const { execs } = (await this.#sandboxes.locate(sandboxId, deadline)).operations;
    const info = await execs.get(execId, deadline);
    if (info.exit !== undefined) this.#tracker.sawExit(sandboxId, execId, info.exit);
    if (info.exit !== undefined || info.inputBytes === undefined) return undefined;
    const taken = await execs.inputTaken(execId, execId, deadline);
    return Math.max(0, info.inputBytes - (taken ?? 0));
  }

  async #end(sandboxId: string, execId: ExecId, missing: number): Promise<void> {
    using deadline = deadlineAfter(callDeadlineMs, this.#closing.signal);
    const { signal } = deadline;
    const { execs } = (await this.#sandboxes.locate(sandboxId, deadline)).operations;
    if (missing === 0)
      return execs.writeStdin(execId, new Uint8Array(), { close: true, signal, again: true });
    this.#logger.warn(
      { sandbox_id: sandboxId, exec_id: execId, missing_bytes: missing },
      "a command is ended: its input was lost",
    );
    const { exit } = await execs.kill(execId, { reason: "cancelled", inputLostBytes: missing, signal });
    if (exit !== undefined) this.#tracker.sawExit(sandboxId, execId, exit);
  }

  async #pause(): Promise<void> {
    const over = Promise.withResolvers<void>();
    const timer = this.#clock.setTimer(this.#graceMs, over.resolve);
    try {
      await abortable(over.promise, this.#closing.signal);
    } catch {
      // The service stops; the next one looks after it.
    } finally {
      timer.cancel();
    }
  }
}
