import { setTimeout as pause } from "node:timers/promises";
import { deadlineAfter } from "../../platform/deadline.ts";
import { DomainError, Unavailable } from "../../ports/errors.ts";
import type { ExecEvent, ExecView } from "../../ports/sandbox-operations.ts";

/** An event of a followed command; before it, `lostBytes` of what was asked for are missing. */
export type FollowedEvent = ExecEvent & { lostBytes?: number };

/** How long a connection that broke is tried to be replaced, and how often. */
const patienceMs = 10_000;
const pauseMs = 100;

/**
 * A view of a command that outlives its connection: when that breaks while the sandbox runs, the command is attached to
 * again where the output broke off. Without an exit it ends only with the sandbox, when the sandbox cannot be reached, or
 * when standard input was given: what of it arrived is not known, and a command must not go on with a part of it. Output
 * that was asked for and is not there any more is counted at the event that follows the gap.
 */
export class LastingView {
  #view: ExecView;
  #nextOffset: number;
  readonly #attach: (from: number, signal: AbortSignal) => Promise<ExecView>;
  readonly #sandboxRuns: () => boolean;
  readonly #patienceMs: number;
  readonly #until: number | undefined;
  /** Also when that was while there was no connection. */
  #inputGiven = false;
  readonly #closing = new AbortController();

  constructor(options: {
    view: ExecView;
    /** Of the first byte of the view. */
    from: number;
    /** @param signal counts until the answer. */
    attach: (from: number, signal: AbortSignal) => Promise<ExecView>;
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
  }

  writeStdin(data: Uint8Array): Promise<void> {
    this.#inputGiven = true;
    return this.#view.writeStdin(data);
  }

  closeStdin(): Promise<void> {
    this.#inputGiven = true;
    return this.#view.closeStdin();
  }

  /** Read to the end, not only to the exit: a view that is left early costs its connection. */
  async *events(): AsyncGenerator<FollowedEvent> {
    for (;;) {
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
      const again = await this.#attachAgain();
      if (again === undefined || this.#inputGiven) {
        if (again !== undefined) await closeQuietly(again);
        if (cause !== undefined) throw cause;
        return;
      }
      this.#view = again;
      await closeQuietly(broken);
      if (this.#closed) await again[Symbol.asyncDispose]();
    }
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await this.#view[Symbol.asyncDispose]();
  }

  get #closed(): boolean {
    return this.#closing.signal.aborted;
  }

  async #attachAgain(): Promise<ExecView | undefined> {
    const deadlineMs = performance.now() + this.#patienceMs;
    while (!this.#closed && !this.#inputGiven && this.#sandboxRuns()) {
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

/** For a view whose connection is gone anyway. */
async function closeQuietly(view: ExecView): Promise<void> {
  try {
    await view[Symbol.asyncDispose]();
  } catch {
    // Its holder has a new one.
  }
}
