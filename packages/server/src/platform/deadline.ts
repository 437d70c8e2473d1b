/** A deadline of ours passed. */
export class DeadlineExceeded extends Error {
  readonly afterMs: number;
  constructor(afterMs: number) {
    super(`the deadline of ${afterMs} ms passed`);
    this.name = "DeadlineExceeded";
    this.afterMs = afterMs;
  }
}
/** The client that asked went away. */
export class CallerGone extends Error {
  constructor() {
    super("the caller went away");
    this.name = "CallerGone";
  }
}
/** The client that asked may no longer: its key was taken back. */
export class CallerRevoked extends CallerGone {
  constructor() {
    super();
    this.message = "the caller's key is no longer accepted";
    this.name = "CallerRevoked";
  }
}
/** The service is stopping. */
export class ShuttingDown extends Error {
  constructor() {
    super("the service is shutting down");
    this.name = "ShuttingDown";
  }
}

/** Ends with the first of its causes; disposing stops the clock. */
export interface Deadline extends Disposable {
  readonly signal: AbortSignal;
}

/**
 * A signal that aborts with DeadlineExceeded after `ms` milliseconds, or earlier with the reason of `parent`.
 * The first cause wins. `using d = deadlineAfter(…)` leaves no timer and no listener behind.
 */
export function deadlineAfter(ms: number, parent?: AbortSignal): Deadline {
  const controller = new AbortController();
  const onParentAbort = () => controller.abort(parent?.reason);
  const timer = setTimeout(() => controller.abort(new DeadlineExceeded(ms)), ms);
  timer.unref();
  if (parent?.aborted) onParentAbort();
  else parent?.addEventListener("abort", onParentAbort, { once: true });
  return {
    signal: controller.signal,
    [Symbol.dispose]() {
      clearTimeout(timer);
      parent?.removeEventListener("abort", onParentAbort);
    },
  };
}
