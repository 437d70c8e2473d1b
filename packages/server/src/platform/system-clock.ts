import { performance } from "node:perf_hooks";
import type { Clock, Timer } from "../ports/clock.ts";
import { outsideRequests } from "./request-scope.ts";

/** Longest delay setTimeout takes, milliseconds. */
const longestTimeoutMs = 2 ** 31 - 1;

/** The machine's own time. */
export const systemClock: Clock = {
  now: () => new Date(),
  monotonicMs: () => performance.now(),
  setTimer: (delayMs, callback) => {
    let timer: NodeJS.Timeout;
    const arm = (remainingMs: number) => {
      const stepMs = Math.min(Math.max(remainingMs, 0), longestTimeoutMs);
      timer = setTimeout(() => (remainingMs > stepMs ? arm(remainingMs - stepMs) : callback()), stepMs);
      timer.unref();
    };
    outsideRequests(() => arm(delayMs));
    return { cancel: () => clearTimeout(timer) } satisfies Timer;
  },
};
