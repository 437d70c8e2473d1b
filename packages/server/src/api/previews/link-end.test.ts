import { afterEach, expect, test, vi } from "vitest";
import { atEnd } from "./link-end.ts";

afterEach(() => vi.useRealTimers());

test.each([1, 24, 25, 90])("what was opened with a link of %d days ends with it, and not before", (days) => {
  vi.useFakeTimers();
  const clock = { now: () => new Date() };
  const ms = days * 86_400_000;
  const onEnd = vi.fn();
  atEnd(new Date(Date.now() + ms), clock, onEnd);
  vi.advanceTimersByTime(ms - 1);
  expect(onEnd).not.toHaveBeenCalled();
  vi.advanceTimersByTime(1);
  expect(onEnd).toHaveBeenCalledOnce();
});

test("what is over sooner leaves no timer", () => {
  vi.useFakeTimers();
  const clock = { now: () => new Date() };
  atEnd(new Date(Date.now() + 90 * 86_400_000), clock, () => undefined)[Symbol.dispose]();
  atEnd(undefined, clock, () => undefined)[Symbol.dispose]();
  expect(vi.getTimerCount()).toBe(0);
});
