import { setTimeout as pause } from "node:timers/promises";
import { abortable } from "../../platform/abortable.ts";
import type { Logger } from "../../platform/logger.ts";
import { RuntimeGone, Unavailable } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecTarget } from "./exec-target.ts";
import type { ExecTracker } from "./exec-tracker.ts";
import type { OverBreaks } from "./over-breaks.ts";
import type { WholeInput } from "./whole-input.ts";

const firstPauseMs = 200;
const longestPauseMs = 5_000;

/** A stop waits for commands to take their input while they do, and never longer than this. */
const givenPatienceMs = 1_000;
const givenMostMs = 5_000;
const givenPauseMs = 200;

interface Whole {
  target: ExecTarget;
  sandboxId: string;
  execId: ExecId;
  input: string;
  data: WholeInput;
}

/** Of a command that somebody reads. */
interface Read {
  /** Whether that reader still gives the input; false once another connection goes on with it. */
  hasInput: () => boolean;
}

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
  readonly #onLeft: (sandboxId: string, execId: ExecId) => void;
  /** Those that may not have arrived yet. */
  readonly #under = new Set<Whole & Partial<Read>>();
  readonly #closing = new AbortController();
  #onGiven: (() => void) | undefined;

  constructor(options: {
    tracker: Pick<ExecTracker, "knows">;
    overBreaks: OverBreaks;
    logger: Logger;
    /** A command runs on, and what is missing of its input could not be given to it. */
    onLeft: (sandboxId: string, execId: ExecId) => void;
  }) {
    this.#tracker = options.tracker;
    this.#overBreaks = options.overBreaks;
    this.#logger = options.logger;
    this.#onLeft = options.onLeft;
  }

  [Symbol.dispose](): void {
    this.#closing.abort();
  }

  /** @returns to be called when the reader of this command leaves: from then on this gives it what is missing of its input. */
  begin(target: ExecTarget, given: Omit<Whole, "sandboxId" | "target"> & Read): (left: InputLeft) => void {
    const whole = { ...given, target, sandboxId: target.row.id };
    this.#begin(whole);
    return ({ exited, taken }) => {
      if (exited) this.#given(whole);
      else void this.#giveRest(target, whole, { taken, again: true });
    };
  }

  /** Gives all of it to a command that nobody reads. */
  give(target: ExecTarget, given: Omit<Whole, "sandboxId" | "target">): void {
    const whole = { ...given, target, sandboxId: target.row.id };
    this.#begin(whole);
    void this.#giveRest(target, whole, { taken: 0, again: false });
  }

  /** Whether this, or a reader that began with it, goes on with the input of that command. */
  holds(sandboxId: string, execId: ExecId): boolean {
    for (const whole of this.#under)
      if (whole.execId === execId && whole.sandboxId === sandboxId && (whole.hasInput?.() ?? true))
        return true;
    return false;
  }

  /**
   * Resolves when every command whose reader has left has its input, or none of them takes any more of it, and after `ms` at the
   * latest: a command that does not read its input keeps nobody from stopping the service.
   */
  async given(ms: number): Promise<void> {
    const nowMs = () => performance.now();
    const endMs = nowMs() + Math.min(ms, givenMostMs);
    let before = "";
    let quietMs = nowMs();
    while (this.#under.size > 0 && nowMs() < endMs && nowMs() < quietMs + givenPatienceMs) {
      const signal = AbortSignal.timeout(Math.ceil(Math.min(endMs - nowMs(), givenPatienceMs)));
      const seen = await this.#taken(signal);
      if (seen !== before) quietMs = nowMs();
      before = seen;
      await this.#allGiven(Math.min(givenPauseMs, endMs - nowMs()));
    }
  }

  /** How much of every input has been taken, as text to compare. */
  async #taken(signal: AbortSignal): Promise<string> {
    const asked = [...this.#under].map(async ({ target, execId, input }) => {
      try {
        return await abortable(target.operations.execs.inputTaken(execId, input, { signal }), signal);
      } catch {
        return undefined;
      }
    });
    return (await Promise.all(asked)).join(" ");
  }

  /** Resolves when nothing is under way, and after `ms` at the latest. */
  async #allGiven(ms: number): Promise<void> {
    if (this.#under.size === 0 || ms <= 0) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#onGiven = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  async #giveRest(
    target: ExecTarget,
    whole: Whole,
    rest: { taken: number | undefined; again: boolean },
  ): Promise<void> {
    const given = await this.#handOver(target, whole, rest).catch(() => false);
    this.#given(whole);
    if (!given && !this.#closing.signal.aborted) this.#onLeft(whole.sandboxId, whole.execId);
  }

  /**
   * @param rest.taken how much of it has arrived. @param rest.again it may have been sent before.
   * @returns whether the command has all of it, or has ended.
   */
  async #handOver(
    target: ExecTarget,
    { execId, input, data }: Whole,
    rest: { taken: number | undefined; again: boolean },
  ): Promise<boolean> {
    const { signal } = this.#closing;
    // Its end may be missing alone.
    data.arrived(rest.taken);
    const options = { close: true, signal, input };
    let begun = rest.again;
    let pauseMs = firstPauseMs;
    while (!signal.aborted && this.#tracker.knows(target.row.id, execId)) {
      try {
        await this.#overBreaks.perform(target, { signal }, (execs, repeated) =>
          execs.writeStdin(execId, data.missing, { ...options, again: begun || repeated }),
        );
        return true;
      } catch (error) {
        this.#logger.debug({ exec_id: execId, err: error }, "standard input was not taken");
        if (!(error instanceof RuntimeGone || error instanceof Unavailable)) return false;
      }
      begun = true;
      await pause(pauseMs, undefined, { ref: false });
      pauseMs = Math.min(pauseMs * 2, longestPauseMs);
    }
    return !signal.aborted;
  }

  #begin(whole: Whole & Partial<Read>): void {
    whole.data.begin();
    this.#under.add(whole);
  }

  #given(whole: Whole): void {
    whole.data.drop();
    this.#under.delete(whole);
    if (this.#under.size === 0) this.#onGiven?.();
  }
}
