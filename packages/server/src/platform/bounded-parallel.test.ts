import { expect, it } from "vitest";
import { boundedParallel } from "./bounded-parallel.ts";

it("runs every item, few at once, and lets the event loop turn between those that wait for nothing", async () => {
  let [running, most, turns] = [0, 0, 0];
  let counting = true;
  const count = () => {
    turns++;
    if (counting) setImmediate(count);
  };
  setImmediate(count);
  const perTurn = new Map<number, number>();
  const seen: number[] = [];
  const items = Array.from({ length: 1_000 }, (_, item) => item);
  await boundedParallel(items, 8, async (item) => {
    most = Math.max(most, ++running);
    perTurn.set(turns, (perTurn.get(turns) ?? 0) + 1);
    seen.push(item);
    await Promise.resolve();
    running--;
  });
  counting = false;
  expect(seen).toEqual(items);
  expect(most).toBe(8);
  expect(Math.max(...perTurn.values())).toBeLessThanOrEqual(200);
});

it("begins nothing more after a failure, and rejects once what had begun has ended", async () => {
  const ended: number[] = [];
  const run = boundedParallel([0, 1, 2, 3], 2, async (item) => {
    if (item === 0) throw new Error("first");
    await new Promise((resolve) => setImmediate(resolve));
    ended.push(item);
  });
  await expect(run).rejects.toThrow("first");
  expect(ended).toEqual([1]);
});
