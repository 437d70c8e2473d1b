import { setTimeout as pause } from "node:timers/promises";
import { deadlineAfter } from "../../platform/deadline.ts";
import { Conflict, DomainError, Unavailable } from "../../ports/errors.ts";
import type { ExecEvent, ExecInfo, ExecView } from "../../ports/sandbox-operations.ts";
import { HeldInput } from "./held-input.ts";

/** An event of a followed command; before it, `lostBytes` of what was asked for are missing. */
export type FollowedEvent = ExecEvent & { lostBytes?: number };

/** How long a connection that broke is tried to be replaced, counted from the last that was of use, and how often. */
const patienceMs = 10_000;
const pauseMs = 100;
/** Made once: an abort without a reason makes an error with a stack, of every command. */
const closed = new Error("the view of the command was closed");
/** A view that lasted so long was of use, as was one that brought output or took input. */
const lastedMs = 1_000;
/** Pauses before views that replace short ones: between those that were of use, and the longest between those that were not. */
const shortPauseMs = 10;
const longestPauseMs = 2_000;

/**
 * A view of a command that outlives its connection: when that breaks while the sandbox runs, the command is attached to
 * again where the output broke off, and given what of its standard input had not arrived. Without an exit it ends only with
 * the sandbox, when the sandbox cannot be reached, or when it goes on and nobody knows what of the input arrived: a
 * command must not go on with a part of it. Output that was asked for and is not there any more is counted at the event that
 * follows the gap.
 */
export class LastingView {
  #view: ExecView;
  #nextOffset: number;
  readonly #attach: (from: number, signal: AbortSignal) => Promise<AttachedView>;
  readonly #sandboxRuns: () => boolean;
  readonly #patienceMs: number;
  /** When the last view that was of use broke. */
  #usefulUntilMs = 0;
  /** Before the next view; grows while views break that were of no use. */
  #pauseMs = 0;
  readonly #until: number | undefined;
  readonly #input = new HeldInput();
  #inputLeft = false;
  /** Ends each write that waits when the input is left. */
  readonly #waitingWrites = new Set<(error: Conflict) => void>();
  /** How much of the input has arrived; undefined: nobody knows. */
  #inputTaken: number | undefined;
  /** The most of it that had arrived when a view broke. */
  #inputTakenBefore = 0;
  #onInput: ((taken: number | undefined) => void) | undefined;
  /** Settles when a view that broke has been replaced, or will not be. */
  #replacing: Promise<void> | undefined;
  readonly #closing = new AbortController();

  constructor(options: {
    view: ExecView;
    /** Of the first byte of the view. */
    from: number;
    /** @param signal counts until the answer. */
    attach: (from: number, signal: AbortSignal) => Promise<AttachedView>;
    sandboxRuns: () => boolean;
    /** Where a view of a running command ends that is not to follow it. */
    until?: number;
    patienceMs?: number;
  }) {
    this.#view = options.view;
    this.#nextOffset = options.from;
    this.#attach = options.attach;
    this.#sandboxRuns = options.sandboxRuns;
    this.#patienceMs = options.patienceMs ?? patienceMs;
    this.#until = options.until;
    this.#watchInput(options.view);
    this.#inputTakenBefore = this.#inputTaken ?? 0;
    this.#input.beginAt(this.#inputTakenBefore);
  }

  /** Resolves when more may be given. @throws Conflict, at once, when the input comes from another view by now. */
  async writeStdin(data: Uint8Array): Promise<void> {
    if (this.#inputLeft) throw inputElsewhere();
    this.#input.give(data);
    await this.#unlessLeft(this.#replacing ?? this.#view.writeStdin(data));
  }

  /** @throws as `writeStdin`. */
  async closeStdin(): Promise<void> {
    if (this.#inputLeft) throw inputElsewhere();
    this.#input.end();
    await this.#unlessLeft(this.#replacing ?? this.#view.closeStdin());
  }

  /** Calls back at once, and whenever more of the input has arrived; with undefined when nobody knows. */
  watchInput(listener: (taken: number | undefined) => void): void {
    this.#onInput = listener;
    listener(this.#inputTaken);
  }

  /** Read to the end, not only to the exit: a view that is left early costs its connection. */
  async *events(): AsyncGenerator<FollowedEvent> {
    this.#usefulUntilMs = performance.now();
    for (;;) {
      const begunMs = performance.now();
      const begunAt = this.#nextOffset;
      let ended = false;
      let cause: unknown;
      try {
        for await (const event of this.#view.events) {
          const begin = event.type === "exit" ? event.exit.outputBytes : event.offset;
          const lostBytes = begin - this.#nextOffset;
          if (event.type === "exit") ended = true;
          else this.#nextOffset = event.offset + event.data.length;
          yield lostBytes > 0 ? { ...event, lostBytes } : event;
        }
      } catch (error) {
        cause = error;
      }
      if (ended || this.#closed) return;
      if (this.#until !== undefined) {
        if (cause !== undefined) throw cause;
        if (this.#nextOffset >= this.#until) return;
        throw new Unavailable(
          `output up to ${this.#until} was wanted, and it broke off at ${this.#nextOffset}`,
        );
      }
      const broken = this.#view;
      const replaced = Promise.withResolvers<void>();
      this.#replacing = replaced.promise;
      const brought = this.#inputGrew() || this.#nextOffset > begunAt;
      const pauseMs = this.#broke(performance.now() - begunMs, brought);
      try {
        const again = await this.#attachAgain(pauseMs);
        if (again === undefined || !this.#goOn(again)) {
          if (again !== undefined) await closeQuietly(again);
          if (cause !== undefined) throw cause;
          return;
        }
        this.#replacing = undefined;
        await closeQuietly(broken);
        if (this.#closed) await again[Symbol.asyncDispose]();
      } finally {
        replaced.resolve();
      }
    }
  }

  /** The input comes from another view from now on, which was given its name: the sandbox takes no more of what waits here. */
  leaveInput(): void {
    this.#inputLeft = true;
    for (const end of this.#waitingWrites) end(inputElsewhere());
    this.#waitingWrites.clear();
  }

  /** How much of the input has arrived; undefined: nobody knows. */
  get inputTaken(): number | undefined {
    return this.#inputTaken;
  }

  /** Memory that is taken by input which was given and is not known to have arrived. */
  get heldInputBytes(): number {
    return this.#input.heldBytes;
  }

  get hasInput(): boolean {
    return !this.#inputLeft;
  }

  async close(): Promise<void> {
    this.#closing.abort(closed);
    await this.#view[Symbol.asyncDispose]();
  }

  get #closed(): boolean {
    return this.#closing.signal.aborted;
  }

  /** Takes over a view that was attached, and sends what is missing of the input. @returns false when nobody knows what is. */
  #goOn(again: AttachedView): boolean {
    if (this.#input.anyGiven && !this.#inputLeft && again.info.exit === undefined) {
      let taken: number | undefined;
      again.watchInput?.((arrived) => (taken = arrived));
      const missing = taken === undefined ? undefined : this.#input.missing(taken);
      if (missing === undefined) return false;
      // In this order, and before anything that is given later. Who gives more waits for these as well.
      for (const piece of missing) this.#inBackground(again.writeStdin(piece));
      if (this.#input.ended) this.#inBackground(again.closeStdin());
    }
    this.#view = again;
    this.#watchInput(again);
    return true;
  }

  async #unlessLeft(written: Promise<void>): Promise<void> {
    const waits = Promise.withResolvers<void>();
    this.#waitingWrites.add(waits.reject);
    written.then(waits.resolve, waits.reject);
    try {
      await waits.promise;
    } finally {
      this.#waitingWrites.delete(waits.reject);
    }
  }

  #watchInput(view: ExecView): void {
    if (view.watchInput === undefined) {
      this.#inputTaken = undefined;
      this.#onInput?.(undefined);
      return;
    }
    view.watchInput((taken) => {
      if (view !== this.#view) return;
      this.#inputTaken = taken;
      this.#input.arrived(taken);
      this.#onInput?.(taken);
    });
  }

  /** Input that a view does not take is sent again on the next, or the command has ended. */
  #inBackground(taken: Promise<void>): void {
    taken.catch(() => undefined);
  }

  /**
   * A view broke: the first is replaced at once, and so is one that lasted. A sandbox that answers each attach and breaks it
   * is asked ever less often. @returns the pause before the next.
   */
  #broke(afterMs: number, brought: boolean): number {
    const pauseMs = this.#pauseMs;
    const lasted = afterMs >= lastedMs;
    if (lasted || brought) this.#usefulUntilMs = performance.now();
    if (lasted) this.#pauseMs = 0;
    else if (brought) this.#pauseMs = shortPauseMs;
    else this.#pauseMs = Math.min(Math.max(pauseMs * 2, shortPauseMs), longestPauseMs);
    return lasted || brought ? Math.min(pauseMs, this.#pauseMs) : pauseMs;
  }

  /** @returns whether more of the input has arrived than when a view broke last. */
  #inputGrew(): boolean {
    const taken = this.#inputTaken ?? 0;
    const grew = taken > this.#inputTakenBefore;
    if (grew) this.#inputTakenBefore = taken;
    return grew;
  }

  async #attachAgain(firstPauseMs: number): Promise<AttachedView | undefined> {
    const deadlineMs = this.#usefulUntilMs + this.#patienceMs;
    if (firstPauseMs > 0)
      await pause(firstPauseMs, undefined, { signal: this.#closing.signal }).catch(ignored);
    while (!this.#closed && this.#sandboxRuns()) {
      const leftMs = deadlineMs - performance.now();
      if (leftMs <= 0) return undefined;
      using attempt = deadlineAfter(leftMs, this.#closing.signal);
      try {
        return await this.#attach(this.#nextOffset, attempt.signal);
      } catch (error) {
        if (error instanceof DomainError && error.code === "not_found") return undefined;
      }
      await pause(pauseMs);
    }
    return undefined;
  }
}

const ignored = () => undefined;

export type AttachedView = ExecView & { info: Pick<ExecInfo, "exit"> };

function inputElsewhere(): Conflict {
  return new Conflict("this input comes on another connection by now");
}

/** For a view whose connection is gone anyway. */
async function closeQuietly(view: ExecView): Promise<void> {
  try {
    await view[Symbol.asyncDispose]();
  } catch {
    // Its holder has a new one.
  }
}
