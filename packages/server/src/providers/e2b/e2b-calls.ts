import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { CallOptions } from "../../ports/index.ts";
import { isTooLong } from "./answer-bounds.ts";
import type { Failures } from "./failures.ts";

/** Calls of the service: each has a deadline, ends with its caller's signal, and fails in our words. */
export class E2bCalls {
  /** Longest time for one call. */
  readonly timeoutMs: number;
  readonly failures: Failures;

  constructor(options: { timeoutMs: number; failures: Failures }) {
    this.timeoutMs = options.timeoutMs;
    this.failures = options.failures;
  }

  /**
   * @param what ends "e2b failed to …".
   * @param options.known makes an error of what is expected here; undefined: nothing special.
   */
  async run<T>(
    what: string,
    options: CallOptions & { timeoutMs?: number; known?: (error: unknown) => Promise<Error | undefined> },
    call: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    options.signal.throwIfAborted();
    using deadline = deadlineAfter(options.timeoutMs ?? this.timeoutMs, options.signal);
    try {
      return await abortable(call(deadline.signal), deadline.signal);
    } catch (error) {
      const known = deadline.signal.aborted
        ? undefined
        : await this.#known(error, options.known, deadline.signal);
      throw known ?? this.failures.translate(what, error, deadline.signal);
    }
  }

  /** Finding out what a failure means ends with the call too. */
  async #known(
    error: unknown,
    known: ((error: unknown) => Promise<Error | undefined>) | undefined,
    signal: AbortSignal,
  ): Promise<Error | undefined> {
    // One that was broken off here says nothing of what was asked for.
    return known === undefined || isTooLong(error)
      ? undefined
      : await abortable(known(error), signal).catch(ignoreOutcome);
  }
}
