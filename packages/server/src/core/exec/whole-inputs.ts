import { setTimeout as pause } from "node:timers/promises";
import type { Logger } from "../../platform/logger.ts";
import { RuntimeGone, Unavailable } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecTarget } from "./exec-target.ts";
import type { ExecTracker } from "./exec-tracker.ts";
import type { OverBreaks } from "./over-breaks.ts";
import type { WholeInput } from "./whole-input.ts";

const firstPauseMs = 200;
const longestPauseMs = 5_000;

/** What a reader that leaves knows of the input of its command. */
export interface InputLeft {
  /** Whether the command has ended, or somebody else goes on with its input. */
  exited: boolean;
  /** How much of it has arrived; undefined: nobody knows. */
  taken: number | undefined;
}

/**
 * Standard input that a caller gave whole, with its command. The command gets all of it, also when the caller leaves, for as long
 * as it runs and this service does.
 */
export class WholeInputs implements Disposable {
  readonly #tracker: Pick<ExecTracker, "knows">;
  readonly #overBreaks: OverBreaks;
  readonly #logger: Logger;
  /** Those that may not have arrived yet. */
  readonly #under = new Set<object>();
  readonly #closing = new AbortController();
  #onGiven: (() => void) | undefined;

  constructor(options: {
    tracker: Pick<ExecTracker, "knows">;
    overBreaks: OverBreaks;
    logger: Logger;
  }) {
    this.#tracker = options.tracker;
    this.#overBreaks = options.overBreaks;
    this.#logger = options.logger;
  }

  [Symbol.dispose](): void {
    this.#closing.abort();
  }

  /** @returns to be called when the reader of this command leaves: from then on this gives it what is missing of its input. */
  begin(
    target: ExecTarget,
    whole: { execId: ExecId; input: string; data: WholeInput },
  ): (left: InputLeft) => void {
    this.#under.add(whole);
    return ({ exited, taken }) => {
      const given = () => this.#given(whole);
      if (exited) given();
      else void this.#handOver(target, whole, taken).then(given, given);
    };
  }

  /** Resolves when every command whose reader has left has its input, and after `ms` at the latest. */
  async given(ms: number): Promise<void> {
    if (this.#under.size === 0 || ms <= 0) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#onGiven = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  async #handOver(
    target: ExecTarget,
    { execId, input, data }: { execId: ExecId; input: string; data: WholeInput },
    taken: number | undefined,
  ): Promise<void> {
    const { signal } = this.#closing;
    // Its end may be missing alone.
    data.arrived(taken);
    const options = { close: true, signal, input, again: true };
    let pauseMs = firstPauseMs;
    while (!signal.aborted && this.#tracker.knows(target.row.id, execId)) {
      try {
        await this.#overBreaks.perform(target, { signal }, (execs) =>
          execs.writeStdin(execId, data.missing, options),
        );
        break;
      } catch (error) {
        this.#logger.debug({ exec_id: execId, err: error }, "standard input was not taken");
        if (!(error instanceof RuntimeGone || error instanceof Unavailable)) break;
      }
      await pause(pauseMs, undefined, { ref: false });
      pauseMs = Math.min(pauseMs * 2, longestPauseMs);
    }
  }

  #given(whole: object): void {
    this.#under.delete(whole);
    if (this.#under.size === 0) this.#onGiven?.();
  }
}
