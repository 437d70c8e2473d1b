import { expect, test } from "vitest";
import { Remembered } from "./remembered.ts";

const texts = (from: number, to: number) =>
  Array.from({ length: to - from }, (_, index) => `${from + index}`);

test("what was used last is remembered, as much as is promised, and no more than twice as much", () => {
  const remembered = new Remembered(10);
  const kept = (all: readonly string[]) => all.filter((text) => remembered.has(text));
  for (let count = 1; count <= 100; count++) {
    remembered.use(`${count}`);
    remembered.use("always");
    expect(kept(texts(Math.max(1, count - 8), count + 1))).toHaveLength(Math.min(9, count));
    expect(kept([...texts(0, 101), "always"]).length).toBeLessThanOrEqual(20);
    expect(remembered.has("always")).toBe(true);
  }
  expect(remembered.has("1")).toBe(false);
});

test("one that is used again and again costs no more where much is remembered", () => {
  const remembered = new Remembered(10_000);
  for (const text of texts(0, 15_000)) remembered.use(text);
  const before = process.threadCpuUsage();
  for (let time = 0; time < 50_000; time++) if (remembered.has("14999")) remembered.use("14999");
  const { user, system } = process.threadCpuUsage(before);
  expect((user + system) / 1_000).toBeLessThan(250);
});
