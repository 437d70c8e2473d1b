import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { TurnsByName } from "./turns-by-name.ts";

test("those of one name come one after the other, whatever becomes of them; others wait for nobody", async () => {
  const turns = new TurnsByName();
  const seen: string[] = [];
  const first = Promise.withResolvers<void>();
  const one = turns.run("a", async () => {
    await first.promise;
    seen.push("one");
    throw new Error("one failed");
  });
  const two = turns.run("a", async () => seen.push("two"));
  const other = turns.run("b", async () => seen.push("other"));
  await other;
  first.resolve();
  await expect(one).rejects.toThrow("one failed");
  await two;
  expect(seen).toEqual(["other", "one", "two"]);
});

test("whoever leaves while it waits does not begin, and those behind it stay behind those before it", async () => {
  const turns = new TurnsByName();
  const leaves = new AbortController();
  const first = Promise.withResolvers<void>();
  const seen: string[] = [];
  const one = turns.run("a", () => first.promise);
  const two = turns.run("a", async () => seen.push("two"), { signal: leaves.signal });
  const three = turns.run("a", async () => seen.push("three"));
  leaves.abort(new Error("left"));
  await expect(two).rejects.toThrow("left");
  await setImmediate();
  expect(seen).toEqual([]);
  first.resolve();
  await Promise.all([one, three]);
  expect(seen).toEqual(["three"]);
});

test("whoever leaves the end of the line leaves those before it to who comes then", async () => {
  const turns = new TurnsByName();
  const leaves = new AbortController();
  const first = Promise.withResolvers<void>();
  const seen: string[] = [];
  const one = turns.run("a", () => first.promise);
  const two = turns.run("a", async () => seen.push("two"), { signal: leaves.signal });
  leaves.abort(new Error("left"));
  await expect(two).rejects.toThrow("left");
  await setImmediate();
  const three = turns.run("a", async () => seen.push("three"));
  await setImmediate();
  expect(seen).toEqual([]);
  first.resolve();
  await Promise.all([one, three]);
  expect(seen).toEqual(["three"]);
});
