import { EventEmitter } from "node:events";
import type { FastifyReply } from "fastify";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { AnswerBudget } from "../core/answers/answer-budget.ts";
import { systemClock } from "../platform/system-clock.ts";
import { answered } from "./answers.ts";

const mib = 1024 * 1024;

class Raw extends EventEmitter {
  closed = false;
  destroy(): void {
    this.closed = true;
    this.emit("close");
  }
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test.each([
  ["an answer", () => undefined],
  [
    "a refusal that tells what was written so far",
    () => {
      throw new Error("the deadline passed");
    },
  ],
])("%s that its caller does not take is cut off, and its memory is there for others", async (_what, end) => {
  const budget = new AnswerBudget({ totalBytes: 8 * mib, waitMs: 1_000, clock: systemClock });
  const raw = new Raw();
  const reply = { raw } as unknown as FastifyReply;
  await answered(reply, budget, async (answer) => {
    answer.grow("a", mib, new AbortController().signal);
    end();
  }).catch(() => undefined);
  await vi.advanceTimersByTimeAsync(30_000);
  expect([raw.closed, budget.heldBytes]).toEqual([false, mib]);
  await vi.advanceTimersByTimeAsync(mib / 64);
  expect([raw.closed, budget.heldBytes, vi.getTimerCount()]).toEqual([true, 0, 0]);
});

test("an answer that is taken leaves no timer", async () => {
  const budget = new AnswerBudget({ totalBytes: 8 * mib, waitMs: 1_000, clock: systemClock });
  const raw = new Raw();
  await answered({ raw } as unknown as FastifyReply, budget, async (answer) => {
    answer.grow("a", mib, new AbortController().signal);
  });
  raw.emit("close");
  expect([budget.heldBytes, vi.getTimerCount()]).toEqual([0, 0]);
});
