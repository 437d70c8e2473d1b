import type { Clock } from "../../ports/clock.ts";

const longestTimerMs = 2 ** 31 - 1;

/** Calls `onEnd` at a moment that may be months away, unless disposed before; undefined: never. */
export function atEnd(until: Date | undefined, clock: Pick<Clock, "now">, onEnd: () => void): Disposable {
  let timer: NodeJS.Timeout | undefined;
  const wait = (end: Date) => {
    const ms = end.getTime() - clock.now().getTime();
    if (ms > longestTimerMs) timer = setTimeout(wait, longestTimerMs, end);
    else timer = setTimeout(onEnd, ms);
    timer.unref();
  };
  if (until !== undefined) wait(until);
  return { [Symbol.dispose]: () => clearTimeout(timer) };
}
