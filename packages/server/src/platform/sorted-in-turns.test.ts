import fc from "fast-check";
import { expect, it } from "vitest";
import { longestTurnMs, TurnWatch } from "../../test/support/turn-watch.ts";
import { sortedInTurns } from "./sorted-in-turns.ts";

it("sorts as sort() does, equal ones in their order", async () => {
  const lists = fc.array(fc.tuple(fc.string({ maxLength: 2 }), fc.nat()), { maxLength: 9_000, size: "max" });
  await fc.assert(
    fc.asyncProperty(lists, async (items) => {
      const expected = items.toSorted(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
      expect(await sortedInTurns(items, ([text]) => text)).toEqual(expected);
    }),
    { numRuns: 20 },
  );
  expect(await sortedInTurns([], String)).toEqual([]);
});

it("a hundred thousand long paths keep nobody waiting", async () => {
  const folder = `/${"folder/".repeat(30)}`;
  const paths = Array.from(
    { length: 100_000 },
    (_, index) => `${folder}${(index * 2_654_435_761) % 2 ** 32}`,
  );
  for (const path of paths) Buffer.from(path);
  using watch = new TurnWatch();
  expect(await sortedInTurns(paths, String)).toHaveLength(100_000);
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(watch.longestMs).toBeLessThan(longestTurnMs / 2);
});
