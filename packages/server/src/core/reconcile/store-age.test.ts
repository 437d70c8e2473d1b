import { afterEach, expect, it, vi } from "vitest";
import { ShuttingDown } from "../../platform/deadline.ts";
import { silentLogger } from "../../platform/logger.ts";
import type { Birth, InventoryEntry, RuntimeId } from "../../ports/index.ts";
import { forever } from "../testing/harness.ts";
import { ScriptedProvider } from "../testing/scripted-provider.ts";
import { StoreAge } from "./store-age.ts";

const run = "0123456789abcdef";
const one = new ScriptedProvider({ name: "one" });
const two = new ScriptedProvider({ name: "two" });

afterEach(() => void vi.useRealTimers());

/** Of a store that has counted nothing and looks like the newest one. */
function opened() {
  const counted = new Map<string, number>();
  const told: string[] = [];
  const slow = () => new Promise<void>((resolve) => setImmediate(resolve));
  const age = new StoreAge({
    providers: [one, two],
    recovery: {
      recovering: false,
      outlived: async () => {
        await slow();
        told.push("outlived");
      },
      recovered: async () => void told.push("recovered"),
    },
    store: {
      sandboxes: {
        lastBirth: async (of) => counted.get(of) ?? 0,
        countBirths: async (births: readonly Birth[]) => {
          for (const { run, number } of births) counted.set(run, number);
          await slow();
        },
      },
    },
    logger: silentLogger,
    onTold: (age) => void told.push(age),
  });
  return { age, told };
}

function born(number: number): InventoryEntry {
  const note = { birth: { run, number } } as NonNullable<InventoryEntry["note"]>;
  return { runtimeId: `rt-${number}` as RuntimeId, state: "running", note };
}

it("is the newest once all were heard or have not answered", async () => {
  const { age, told } = opened();
  await age.hear(one, []);
  expect(age.current).toBe("open");
  age.silent(two);
  await age.told(forever);
  expect(age.current).toBe("newest");
  expect(told).toEqual(["newest"]);
});

it("is the newest after a minute in which one was neither heard nor away", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  const { age } = opened();
  const told = age.told(forever);
  vi.advanceTimersByTime(59_999);
  expect(age.current).toBe("open");
  vi.advanceTimersByTime(1);
  await told;
  expect(age.current).toBe("newest");
});

it("is waited for no longer by a service that stops, to which it says nothing", async () => {
  const { age } = opened();
  const closing = new AbortController();
  const told = age.told(closing.signal);
  closing.abort(new ShuttingDown());
  await expect(told).rejects.toBeInstanceOf(ShuttingDown);
  expect(age.current).toBe("open");
});

it("is told once to be an older one by two that show it at the same time", async () => {
  const { age, told } = opened();
  await Promise.all([age.hear(one, [born(1)]), age.hear(two, [born(2)])]);
  expect(told).toEqual(["outlived", "older"]);
});

it("waits for every provider in each recovery", async () => {
  const { age, told } = opened();
  for (const number of [1, 2]) {
    told.length = 0;
    await age.hear(one, [born(number)]);
    await age.complete(one, []);
    expect(told).toEqual(["outlived", "older"]);
    await age.complete(two, []);
    expect(told).toEqual(["outlived", "older", "recovered"]);
    expect(age.current).toBe("newest");
  }
});

it("is an older one for as long as somebody lists what it lacks", async () => {
  const { age } = opened();
  await age.hear(one, [born(1)]);
  await age.complete(one, []);
  await age.hear(one, [born(3)]);
  await age.complete(two, []);
  expect([age.current, age.lacks(one, born(3))]).toEqual(["older", true]);
});

it("is an older one for as long as somebody lists what says nothing of its birth", async () => {
  const { age } = opened();
  await age.hear(one, [born(1)]);
  await age.complete(one, []);
  const bare: InventoryEntry = { runtimeId: "rt-0" as RuntimeId, state: "running" };
  await age.hear(one, [bare]);
  await age.complete(two, []);
  expect([age.current, age.lacks(one, bare)]).toEqual(["older", true]);
});

it("is another one for who is heard while a recovery ends than before", async () => {
  const { age } = opened();
  await age.hear(one, [born(1)]);
  await age.complete(one, []);
  const completed = age.complete(two, []);
  await age.hear(one, [born(3)]);
  await completed;
  expect([age.current, age.lacks(one, born(3))]).toEqual(["older", true]);
});
