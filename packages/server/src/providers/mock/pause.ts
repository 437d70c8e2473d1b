import type { Clock } from "../../ports/clock.ts";

/** Waits on the clock. @throws the signal's reason when it aborts first. */
export async function pause(clock: Clock, delayMs: number, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const timer = clock.setTimer(delayMs, resolve);
  const abort = () => {
    timer.cancel();
    reject(signal.reason);
  };
  signal.addEventListener("abort", abort, { once: true });
  try {
    await promise;
  } finally {
    signal.removeEventListener("abort", abort);
  }
}
