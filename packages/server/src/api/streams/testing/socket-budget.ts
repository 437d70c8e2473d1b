import { BodyBudget } from "../../../core/answers/body-budget.ts";
import { systemClock } from "../../../platform/system-clock.ts";
import type { SocketShare } from "../socket-memory.ts";

const words = { why: "it is full", advice: "try again" };

/** Memory for the messages of WebSockets; enough for any test that does not say how much. */
export function socketBudget(options: { totalBytes?: number; waitMs?: number } = {}): BodyBudget {
  const refusals = { tooLarge: String, full: words, shareFull: words };
  return new BodyBudget({ totalBytes: 2 ** 30, waitMs: 10_000, ...options, clock: systemClock, refusals });
}

export function socketShare(budget = socketBudget()): SocketShare {
  return { budget, share: { principal: "key", owner: "" } };
}
