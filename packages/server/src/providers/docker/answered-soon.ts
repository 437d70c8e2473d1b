import { deadlineAfter } from "../../platform/deadline.ts";
import { type CallOptions, Unavailable } from "../../ports/index.ts";

/** Longer than an engine that works takes for a question, and short for who waits for the answer. */
const patienceMs = 5_000;

/**
 * Asks the engine what it can answer at once. An engine that stands still, or is stopped, takes calls and answers none.
 * @throws Unavailable when there is no answer after 5 s; else what `ask` throws.
 */
export async function answeredSoon<T>(
  action: string,
  { signal }: CallOptions,
  ask: (options: CallOptions) => Promise<T>,
): Promise<T> {
  using deadline = deadlineAfter(patienceMs, signal);
  try {
    return await ask({ signal: deadline.signal });
  } catch (error) {
    if (!deadline.signal.aborted) throw error;
    signal.throwIfAborted();
    throw new Unavailable(`the Docker Engine did not ${action} within ${patienceMs / 1000} s; try again`, {
      cause: error,
      retryAfterS: 5,
    });
  }
}
