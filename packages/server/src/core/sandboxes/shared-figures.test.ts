import { expect, test, vi } from "vitest";
import type { RuntimeStats } from "../../ports/index.ts";
import { SharedFigures } from "./shared-figures.ts";

/** Looks that end when they are told to, in the order they began. */
function looks() {
  const begun: PromiseWithResolvers<RuntimeStats>[] = [];
  const look = vi.fn(() => {
    const answer = Promise.withResolvers<RuntimeStats>();
    begun.push(answer);
    return answer.promise;
  });
  return { begun, look };
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

test("a sandbox is looked at once for all who ask at once, and once more for all who come meanwhile", async () => {
  const figures = new SharedFigures({ deadlineMs: 1_000 });
  const { begun, look } = looks();
  const first = Array.from({ length: 100 }, () => figures.of("sb-a", look));
  await settled();
  const later = Array.from({ length: 100 }, () => figures.of("sb-a", look));
  const other = figures.of("sb-b", look);
  await settled();
  expect(look).toHaveBeenCalledTimes(2);
  begun[1]?.resolve({ pids: 9 });
  expect(await other).toEqual({ pids: 9 });
  begun[0]?.resolve({ pids: 1 });
  expect(await Promise.all(first)).toEqual(first.map(() => ({ pids: 1 })));
  await settled();
  expect(look).toHaveBeenCalledTimes(3);
  begun[2]?.resolve({ pids: 2 });
  expect(await Promise.all(later)).toEqual(later.map(() => ({ pids: 2 })));
});

test("a look that fails fails those who asked for it alone, and one that does not end has its time", async () => {
  const figures = new SharedFigures({ deadlineMs: 50 });
  const first = figures.of(
    "sb-a",
    ({ signal }) =>
      new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
  );
  await settled();
  const second = figures.of("sb-a", () => Promise.resolve({ pids: 2 }));
  await expect(first).rejects.toThrow();
  expect(await second).toEqual({ pids: 2 });
});
