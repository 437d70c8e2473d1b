import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { ToldInTurns } from "./told-in-turns.ts";

test("64 are told in a turn, in their order; those who waited for others come in between", async () => {
  const turns = new ToldInTurns();
  const told: string[] = [];
  const many = (name: string, count: number) =>
    Array.from({ length: count }, (_, index) => () => void told.push(`${name}${index}`));
  turns.tell(many("a", 150));
  expect(told).toEqual(Array.from({ length: 64 }, (_, index) => `a${index}`));
  turns.tell(many("b", 3));
  turns.tell([]);
  expect(told).toHaveLength(64);
  await setImmediate();
  expect(told).toHaveLength(128);
  expect(told.slice(64 + 8, 64 + 8 + 3)).toEqual(["b0", "b1", "b2"]);
  await setImmediate();
  expect(told).toHaveLength(153);
  expect(told.filter((one) => one.startsWith("a"))).toEqual(
    Array.from({ length: 150 }, (_, index) => `a${index}`),
  );
  await setImmediate();
  turns.tell(many("c", 1));
  expect(told.at(-1)).toBe("c0");
});
