import { abortable } from "../../platform/abortable.ts";
import type { Clock } from "../../ports/index.ts";

/** Between two looks at something that nobody tells the end of. @throws the signal's reason when it aborts first. */
export async function pause(clock: Pick<Clock, "setTimer">, ms: number, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = clock.setTimer(ms, resolve);
  try {
    await abortable(promise, signal);
  } finally {
    timer.cancel();
  }
}
