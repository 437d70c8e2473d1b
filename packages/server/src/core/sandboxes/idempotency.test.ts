import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import type { SandboxId, SandboxRow } from "../../ports/index.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { forever } from "../testing/harness.ts";
import { IdempotentSpawns } from "./idempotency.ts";

test("a repeat of a spawn that is being made or undone says when to come again", async () => {
  const id = "sb-1" as SandboxId;
  const spawns = new IdempotentSpawns({
    store: {
      idempotency: { find: async () => ({ bodyHash: "same", sandboxId: id }) },
      sandboxes: { get: async () => undefined },
    },
    clock: new FakeClock(),
  } as never);
  const request = { key: "k", ownerId: "ann", id, bodyHash: "same", signal: forever };
  const again = spawns.run(request, () => Promise.reject(new Error("must not be made")));
  await expect(again).rejects.toMatchObject({ code: "unavailable", retryAfterS: 1 });
});

const made = { id: "sb-1", state: "running" } as SandboxRow;

/** @returns spawns with a key that leads to nothing yet, and what has it lead to `made`. */
function unclaimed() {
  let held: { bodyHash: string; sandboxId: SandboxId } | undefined;
  const store = {
    idempotency: { find: async () => held, release: async () => undefined },
    sandboxes: { get: async () => made },
  };
  const claim = () => {
    held = { bodyHash: "same", sandboxId: made.id };
    return made;
  };
  return { spawns: new IdempotentSpawns({ store, clock: new FakeClock() } as never), claim };
}

const wanted = (signal = forever) => ({
  key: "k",
  ownerId: "ann",
  id: "sb-1" as SandboxId,
  bodyHash: "same",
  signal,
});

test.each([
  ["the first makes it", 1],
  ["only the last does", 1_001],
])("what a spawn costs that a thousand wait for grows with them alone: %s", async (_what, attempts) => {
  const { spawns, claim } = unclaimed();
  const begin = Promise.withResolvers<void>();
  let spawned = 0;
  const spawn = async () => {
    spawned += 1;
    await begin.promise;
    if (spawned < attempts) throw new Error("no luck");
    return claim();
  };
  const all = Array.from({ length: 1_001 }, () => spawns.run(wanted(), spawn));
  await setImmediate();
  const before = process.threadCpuUsage();
  begin.resolve();
  const outcomes = await Promise.allSettled(all);
  const { user, system } = process.threadCpuUsage(before);
  expect(spawned).toBe(attempts);
  expect(outcomes.filter(({ status }) => status === "fulfilled")).toHaveLength(1_002 - attempts);
  expect((user + system) / 1_000).toBeLessThan(150);
});

test("more than a thousand do not wait for one spawn", async () => {
  const { spawns } = unclaimed();
  const begin = Promise.withResolvers<SandboxRow>();
  const all = Array.from({ length: 1_001 }, () => spawns.run(wanted(), () => begin.promise));
  await expect(spawns.run(wanted(), () => begin.promise)).rejects.toMatchObject({
    code: "unavailable",
    retryAfterS: 1,
  });
  begin.resolve(made);
  expect((await Promise.all(all)).filter(({ replayed }) => !replayed)).toHaveLength(1);
});

test("of those who wait for many spawns that end at once, some are told in a turn", async () => {
  const { spawns } = unclaimed();
  const begin = Promise.withResolvers<SandboxRow>();
  let told = 0;
  const all = Array.from({ length: 400 }, (_, index) =>
    spawns.run({ ...wanted(), key: `k-${index % 20}` }, () => begin.promise).then(() => told++),
  );
  await setImmediate();
  begin.resolve(made);
  await setImmediate();
  expect(told).toBeLessThanOrEqual(20 + 2 * 64);
  await Promise.all(all);
});

test("whoever leaves while it waits is passed over", async () => {
  const { spawns } = unclaimed();
  const begin = Promise.withResolvers<SandboxRow>();
  const leaves = new AbortController();
  const first = spawns.run(wanted(), () => begin.promise);
  const second = spawns.run(wanted(leaves.signal), () => Promise.reject(new Error("must not be made")));
  const third = spawns.run(wanted(), () => Promise.resolve(made));
  leaves.abort(new Error("left"));
  await expect(second).rejects.toThrow("left");
  begin.reject(new Error("no luck"));
  await expect(first).rejects.toThrow("no luck");
  await expect(third).resolves.toMatchObject({ replayed: false });
});
