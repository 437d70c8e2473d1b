import { EventEmitter } from "node:events";
import type { FastifyReply } from "fastify";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { AnswerBudget } from "../core/answers/answer-budget.ts";
import { localUser } from "../core/keys/principal.ts";
import { systemClock } from "../platform/system-clock.ts";
import { Unavailable } from "../ports/errors.ts";
import { answered } from "./answers.ts";

const mib = 1024 * 1024;
/** All of it stands still until a test moves it. */
const clock = { ...systemClock, monotonicMs: () => Date.now() };

class Raw extends EventEmitter {
  closed = false;
  destroy(): void {
    this.closed = true;
    this.emit("close");
  }
}

const replyOf = (raw: Raw, ip = "192.0.2.1", headers = {}) =>
  ({ raw, request: { ip, headers, principal: localUser } }) as unknown as FastifyReply;

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
  const budget = new AnswerBudget({ totalBytes: 8 * mib, waitMs: 1_000, clock });
  const raw = new Raw();
  await answered(replyOf(raw), budget, async (answer) => {
    answer.grow("a", mib, new AbortController().signal);
    end();
  }).catch(() => undefined);
  await vi.advanceTimersByTimeAsync(30_000);
  expect([raw.closed, budget.heldBytes]).toEqual([false, mib]);
  await vi.advanceTimersByTimeAsync(mib / 24 + 1);
  expect([raw.closed, budget.heldBytes, vi.getTimerCount()]).toEqual([true, 0, 0]);
});

test("an answer that is taken leaves no timer", async () => {
  const budget = new AnswerBudget({ totalBytes: 8 * mib, waitMs: 1_000, clock });
  const raw = new Raw();
  await answered(replyOf(raw), budget, async (answer) => {
    answer.grow("a", mib, new AbortController().signal);
  });
  raw.emit("close");
  expect([budget.heldBytes, vi.getTimerCount()]).toEqual([0, 0]);
});

test("an answer of nobody's takes from its caller's share, whichever sandbox it is about", async () => {
  const budget = new AnswerBudget({ totalBytes: 8 * mib, waitMs: 1_000, clock });
  const never = new AbortController().signal;
  const ask = (ip: string, headers: Record<string, string> = {}) =>
    answered(replyOf(new Raw(), ip, headers), budget, async (answer) => answer.grow("", 3 * mib, never));
  await ask("192.0.2.1");
  const waits = expect(ask("192.0.2.1")).rejects.toThrow(Unavailable);
  await vi.advanceTimersByTimeAsync(0);
  expect(budget.waiting).toBe(1);
  // Another caller is not kept waiting by that.
  await ask("192.0.2.2");
  expect([budget.waiting, budget.heldBytes]).toEqual([1, 6 * mib]);
  await vi.advanceTimersByTimeAsync(1_000);
  await waits;
});

test("without keys all addresses of an IPv6 network of 64 bits have one share", async () => {
  const budget = new AnswerBudget({ totalBytes: 8 * mib, waitMs: 1_000, clock });
  const never = new AbortController().signal;
  const ask = (ip: string) =>
    answered(replyOf(new Raw(), ip), budget, async (answer) => answer.grow("", 3 * mib, never));
  await ask("2001:db8:0:1::1");
  const waits = expect(ask("2001:db8:0:1::2")).rejects.toThrow(Unavailable);
  await vi.advanceTimersByTimeAsync(0);
  expect(budget.waiting).toBe(1);
  await ask("2001:db8:0:2::1");
  await vi.advanceTimersByTimeAsync(1_000);
  await waits;
});
