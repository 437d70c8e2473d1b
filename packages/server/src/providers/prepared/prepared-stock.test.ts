import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { currentRequestId, withinRequest } from "../../platform/request-scope.ts";
import { PreparedStock, type Waiting } from "./prepared-stock.ts";

interface Shape {
  memoryMb: number;
}

interface One extends Waiting {
  name: string;
  end: AbortController;
}

const shapeOf = (memoryMb: number): Shape => ({ memoryMb });
const shape = shapeOf(64);

let madeOf: string;
let busy: boolean;
let made: One[];
let discarded: string[];
let failures: unknown[];
let gaveWay: [number, unknown][];
let requests: (string | undefined)[];
let fail: Error | undefined;
let gone: boolean;
let endsWhileMade: boolean;
let failing: (shape: Shape) => boolean;
let stock: PreparedStock<Shape, One>;

beforeEach(() => {
  vi.useFakeTimers();
  [madeOf, busy, made, discarded, failures, fail] = ["files", false, [], [], [], undefined];
  gaveWay = [];
  requests = [];
  failing = () => true;
  [gone, endsWhileMade] = [false, false];
  stock = stockOf(2);
});
afterEach(async () => {
  await stock[Symbol.asyncDispose]();
  vi.useRealTimers();
});

function stockOf(count: number): PreparedStock<Shape, One> {
  return new PreparedStock({
    count,
    keyOf: ({ memoryMb }) => String(memoryMb),
    site: {
      make: async (wanted) => {
        requests.push(currentRequestId());
        if (fail !== undefined && failing(wanted)) throw fail;
        if (gone) return undefined;
        const end = new AbortController();
        if (endsWhileMade) end.abort();
        const one = { name: `prepared-${made.length}`, madeOf, end, ended: end.signal };
        made.push(one);
        return one;
      },
      discard: async ({ name }) => {
        discarded.push(name);
      },
      isBusy: () => busy,
      onFailure: (error) => failures.push(error),
      onGaveWay: (...told) => gaveWay.push(told),
    },
  });
}

const take = (wanted = shape) => stock.take(wanted, () => madeOf)?.name;
const quiet = () => vi.advanceTimersByTimeAsync(5_000);

it("a shape that was wanted once is prepared, as often as configured, and each is given away once", async () => {
  expect(take()).toBeUndefined();
  await quiet();
  expect(made).toHaveLength(2);
  expect([take(), take(), take()]).toEqual(["prepared-0", "prepared-1", undefined]);
  await quiet();
  expect(made).toHaveLength(4);
});

it("what is prepared is done for no request, whoever spawned before", async () => {
  // Timers that are not real ones carry no request along.
  vi.useRealTimers();
  withinRequest({ id: "req-1", span: undefined }, () => void take());
  await vi.waitFor(() => expect(requests).toEqual([undefined, undefined]));
});

it("nothing is prepared while somebody waits, and a busy site is waited for", async () => {
  busy = true;
  take();
  await quiet();
  expect(made).toEqual([]);
  busy = false;
  stock.later();
  await quiet();
  expect(made).toHaveLength(2);
});

it("one made of what has changed since is never given away", async () => {
  take();
  await quiet();
  madeOf = "other files";
  expect(take()).toBeUndefined();
  expect(discarded).toEqual(["prepared-0", "prepared-1"]);
  await quiet();
  expect(take()).toBe("prepared-2");
});

it("what cannot be looked at is taken for changed", async () => {
  take();
  await quiet();
  expect(stock.take(shape, () => undefined)).toBeUndefined();
  expect(discarded).toHaveLength(2);
});

it("a shape that is wanted more takes the place of the one that is wanted least, and was longest ago", async () => {
  for (const memoryMb of [1, 2, 3, 1]) take(shapeOf(memoryMb));
  await quiet();
  expect(made).toHaveLength(6);
  take(shapeOf(4));
  take(shapeOf(4));
  expect(discarded).toEqual([]);
  take(shapeOf(4));
  expect(discarded).toHaveLength(2);
  await quiet();
  expect(take(shapeOf(1))).toBeDefined();
  expect(take(shapeOf(4))).toBeDefined();
  expect(take(shapeOf(2))).toBeUndefined();
});

it("what is not wanted any more gives its place to what is", async () => {
  for (const memoryMb of [1, 2, 3]) take(shapeOf(memoryMb));
  await quiet();
  for (let time = 0; time < 3; time += 1) for (const memoryMb of [4, 5, 6, 7, 8, 9]) take(shapeOf(memoryMb));
  await quiet();
  expect(discarded).toHaveLength(6);
  const found = [4, 5, 6, 7, 8, 9].filter((memoryMb) => take(shapeOf(memoryMb)) !== undefined);
  expect(found).toHaveLength(3);
});

it("of more shapes than are prepared, wanted by turns or once each, none is made to be thrown away", async () => {
  let found = 0;
  const spawn = async (memoryMb: number) => {
    found += take(shapeOf(memoryMb)) === undefined ? 0 : 1;
    await quiet();
  };
  for (let time = 0; time < 60; time += 1) await spawn(time % 6);
  expect(found).toBe(27);
  for (let time = 0; time < 60; time += 1) await spawn(100 + time);
  expect(discarded).toEqual([]);
  expect(made).toHaveLength(found + 6);
});

it("a failure is told, and tried again after a while", async () => {
  fail = new Error("no room");
  take();
  await vi.advanceTimersByTimeAsync(9_000);
  expect(failures).toEqual([fail]);
  fail = undefined;
  await vi.advanceTimersByTimeAsync(9_000);
  expect(made).toHaveLength(2);
});

it("a shape that cannot be made keeps no other from being made, and is tried less and less often", async () => {
  fail = new Error("a root that nothing starts in");
  failing = ({ memoryMb }) => memoryMb === 2;
  take(shapeOf(1));
  take(shapeOf(2));
  await quiet();
  expect(made).toHaveLength(2);
  take(shapeOf(1));
  await quiet();
  expect(made).toHaveLength(3);
  await vi.advanceTimersByTimeAsync(60 * 60_000);
  expect(failures.length).toBeGreaterThan(20);
  expect(failures.length).toBeLessThan(30);
});

it("a shape that there are no files for any more is forgotten, and those that wait are removed", async () => {
  take(shapeOf(1));
  await quiet();
  gone = true;
  take(shapeOf(1));
  await quiet();
  expect(discarded).toEqual(["prepared-1"]);
  gone = false;
  await quiet();
  expect(made).toHaveLength(2);
});

it("whoever lacks room gets all that those that wait have, and none is made for a while", async () => {
  take(shapeOf(1));
  take(shapeOf(2));
  await quiet();
  const beganMs = performance.now();
  const why = new Error("no room");
  const both = [stock.giveWay(beganMs, why), stock.giveWay(beganMs, why)];
  expect(await Promise.all(both)).toEqual([true, true]);
  expect(discarded).toHaveLength(4);
  expect(await stock.giveWay(performance.now() + 1, why)).toBe(false);
  expect(gaveWay).toEqual([[4, why]]);
  expect(stock.figures?.gaveWay).toBe(4);
  await quiet();
  expect(made).toHaveLength(4);
  await quiet();
  await quiet();
  expect(made).toHaveLength(8);
});

it("those that ended with the launcher are removed, and made again", async () => {
  take();
  await quiet();
  stock.lose();
  expect(take()).toBeUndefined();
  expect(discarded).toHaveLength(2);
  await quiet();
  expect(made).toHaveLength(4);
});

it("one that ends while it waits is removed and made again", async () => {
  take();
  await quiet();
  made[0]?.end.abort();
  await quiet();
  expect(discarded).toEqual(["prepared-0"]);
  expect([take(), take(), take()]).toEqual(["prepared-1", "prepared-2", undefined]);
  made[1]?.end.abort();
  await quiet();
  expect(discarded).toEqual(["prepared-0"]);
});

it("those that end as soon as they are made are left for a while, and it is told", async () => {
  take();
  const end = () => vi.advanceTimersByTimeAsync(60).then(() => made.at(-1)?.end.abort());
  for (let times = 0; times < 600; times++) await end();
  expect(made.length).toBeLessThan(40);
  expect(failures.map(String)).toContain("Error: 7 that waited ended by themselves within 10 s");
  await vi.advanceTimersByTimeAsync(160_000);
  expect(stock.figures?.waiting).toBe(2);
});

it("those that end before they wait are left for a while too", async () => {
  endsWhileMade = true;
  take();
  await vi.advanceTimersByTimeAsync(36_000);
  expect(made.length).toBeLessThan(40);
  expect(discarded).toHaveLength(made.length);
  expect(failures.map(String)).toContain("Error: 7 that waited ended by themselves within 10 s");
});

it("at its end all that wait are removed, and nothing is made any more", async () => {
  take();
  await quiet();
  await stock[Symbol.asyncDispose]();
  expect(discarded).toEqual(["prepared-0", "prepared-1"]);
  expect(take()).toBeUndefined();
  await quiet();
  expect(made).toHaveLength(2);
});

it("tells how many wait, what became of spawns, and how often none could be made", async () => {
  expect(stock.figures).toEqual({ waiting: 0, claimed: 0, cold: 0, failed: 0, gaveWay: 0 });
  fail = new Error("no room");
  take();
  stock.became("cold");
  await quiet();
  expect(stock.figures).toEqual({ waiting: 0, claimed: 0, cold: 1, failed: 1, gaveWay: 0 });
  fail = undefined;
  await vi.advanceTimersByTimeAsync(20_000);
  take();
  stock.became("claimed");
  expect(stock.figures).toEqual({ waiting: 1, claimed: 1, cold: 1, failed: 1, gaveWay: 0 });
});

it("0 prepares nothing", async () => {
  stock = stockOf(0);
  expect(stock.figures).toBeUndefined();
  expect(take()).toBeUndefined();
  await quiet();
  expect(made).toEqual([]);
});
