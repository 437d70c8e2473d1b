import { appendFile, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pino } from "pino";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { type Logger, silentLogger } from "../../platform/logger.ts";
import { type RuntimeId, StorageFull } from "../../ports/index.ts";
import { layerSizes } from "../native/layer-sizes.ts";
import { DiskGuard } from "./disk-guard.ts";
import type { DiskSpace } from "./disk-space.ts";
import { RepeatedLook } from "./repeated-look.ts";

const mb = 1 << 20;
const [small, large] = ["rt-small", "rt-large"] as [RuntimeId, RuntimeId];
let root: string;
let stopped: string[];
let space: DiskSpace | undefined;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "alcove-guard-"));
  stopped = [];
  space = { freeMb: 50, freeInodes: undefined };
  for (const id of [small, large]) await mkdir(join(root, id));
});
afterEach(() => rm(root, { recursive: true }));

let looks = 0;
const open = (minFreeMb = 100, limitMb = 0, logger = silentLogger) =>
  new DiskGuard({
    minFreeMb,
    limitMb,
    says: { where: "below data_dir", minFree: "providers.native.min_free_mb", limit: "disk_mb" },
    logger,
    running: () => [small, large].filter((id) => !stopped.some((line) => line.startsWith(id))),
    measure: (ids, { inodes }) => layerSizes(ids, { path: (id) => join(root, id), inodes }),
    stop: async (id, reason) => {
      stopped.push(`${id} ${reason}`);
    },
    space: async () => {
      looks++;
      return space;
    },
  });

describe("the guard of the disk", () => {
  const write = (id: RuntimeId, sizeMb: number, name = "file") =>
    appendFile(join(root, id, name), Buffer.alloc(sizeMb * mb, 1));
  const free = (freeMb: number) => {
    space = { freeMb, freeInodes: undefined };
  };
  const whoStopped = () => stopped.map((line) => line.split(" ")[0]);

  it("stops who grew, with the numbers in the reason", async () => {
    await using guard = open();
    free(80);
    await guard.look();
    await write(large, 30);
    free(50);
    await guard.look();
    expect(stopped).toEqual([
      expect.stringMatching(/^rt-large stopped: it had written 30 MB and 50 MB were free.*min_free_mb$/),
    ]);
  });

  it("looks again before the fastest disk gets from plenty to the mark, with or without a limit", async () => {
    for (const limitMb of [0, 1_000]) {
      await using guard = open(100, limitMb);
      free(50_000);
      expect(await guard.look()).toBe(5_000);
      // With a limit all is measured, and the guard rests for a multiple of what that took.
      const isAbout = (pauseMs: number, ms: number) => {
        if (limitMb === 0) expect(pauseMs).toBe(ms);
        else expect(pauseMs >= ms && pauseMs < 5_000, `${pauseMs}`).toBe(true);
      };
      free(2_000);
      isAbout(await guard.look(), 1_750);
      free(401);
      isAbout(await guard.look(), 250);
    }
  });

  it("stops who grows, not who is largest", async () => {
    await using guard = open();
    await write(large, 40);
    await write(small, 17);
    free(102);
    expect(await guard.look()).toBeLessThan(5_000);
    await write(small, 3);
    free(98);
    await guard.look();
    expect(whoStopped()).toEqual([small]);
  });

  it("stops nobody at rest, however large, and nobody whose growth explains less than half of what was lost", async () => {
    await using guard = open();
    await write(large, 40);
    await write(small, 17);
    free(150);
    await guard.look();
    await write(small, 3);
    free(50);
    for (let n = 0; n < 3; n++) await guard.look();
    expect(stopped).toEqual([]);
    await expect(guard.refuseWhenShort()).rejects.toThrow(StorageFull);
  });

  it("is helpless while space is short and nobody is to blame, and while it cannot look; none is told where it is off", async () => {
    const helpless = [{ guard: "disk", helpless: true }];
    const able = [{ guard: "disk", helpless: false }];
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    using _ = { [Symbol.dispose]: () => vi.useRealTimers() };
    const there = [large];
    let see = async (): Promise<DiskSpace | undefined> => space;
    const looked = { looks: 0 };
    await using guard = new DiskGuard({
      minFreeMb: 100,
      says: { where: "below data_dir", minFree: "providers.native.min_free_mb" },
      logger: silentLogger,
      running: () => there,
      measure: async () => new Map([[large, 0]]),
      space: () => {
        looked.looks++;
        return see();
      },
      stop: async () => undefined,
    });
    const nextLook = async () => {
      const before = looked.looks;
      while (looked.looks === before) await vi.advanceTimersByTimeAsync(250);
      await vi.advanceTimersByTimeAsync(0);
    };
    expect(guard.states).toEqual(able);
    guard.start();
    await nextLook();
    await nextLook();
    expect(guard.states).toEqual(helpless);
    free(1_000);
    await nextLook();
    expect(guard.states).toEqual(able);
    see = () => Promise.reject(new Error("gone"));
    await nextLook();
    expect(guard.states).toEqual(helpless);
    see = async () => space;
    await nextLook();
    expect(guard.states).toEqual(able);
    free(50);
    await nextLook();
    await nextLook();
    expect(guard.states).toEqual(helpless);
    // There is nobody to stop.
    there.pop();
    expect(guard.states).toEqual(able);
    await using off = open(0);
    expect(off.states).toEqual([]);
  });

  it("tells that nobody is to blame for a shortage, and once that it is over", async () => {
    const told: string[] = [];
    const logger = Object.assign(Object.create(silentLogger) as Logger, {
      error: (message: string) => void told.push(`error ${message}`),
      info: ({ event }: { event: string }, message: string) => void told.push(`${event} ${message}`),
    });
    await using guard = open(100, 0, logger);
    for (const freeMb of [50, 50, 40, 300, 300]) {
      free(freeMb);
      await guard.look();
    }
    expect(told).toEqual([
      expect.stringMatching(/^error 50 MB were free below data_dir.* none can be made$/),
      "disk.enough 300 MB are free below data_dir: sandboxes can be made again",
    ]);
  });

  it("is helpless no more once somebody was to blame, and again when that one did not explain the rest", async () => {
    await using guard = open();
    const helpless = async () => {
      await guard.look();
      return guard.states.map((state) => state.helpless);
    };
    expect(await helpless()).toEqual([false]);
    expect(await helpless()).toEqual([true]);
    await write(large, 30);
    free(20);
    expect(await helpless()).toEqual([false]);
    expect(whoStopped()).toEqual([large]);
    for (let looked = 0; looked < 3; looked++) await guard.look();
    expect(await helpless()).toEqual([true]);
  });

  it("stops nobody at its first look: who was there before is not known to grow", async () => {
    await using guard = open();
    await write(large, 40);
    await guard.look();
    await guard.look();
    expect(stopped).toEqual([]);
  });

  it("stops several who fill the disk together one after the other, the fastest first", async () => {
    await using guard = open();
    free(140);
    await guard.look();
    await write(large, 30);
    await write(small, 20);
    free(90);
    await guard.look();
    expect(whoStopped()).toEqual([large]);
    await write(small, 25);
    free(95);
    await guard.look();
    expect(whoStopped()).toEqual([large, small]);
  });

  it("looks on while what one had written is removed, and stops another only when half of the mark is used up", async () => {
    const removed = Promise.withResolvers<void>();
    const lines: Record<string, unknown>[] = [];
    const logger = pino({ level: "warn" }, { write: (line) => void lines.push(JSON.parse(line)) });
    const sizes = new Map([
      [large, 0],
      [small, 0],
    ]);
    const begun: RuntimeId[] = [];
    await using guard = new DiskGuard({
      minFreeMb: 100,
      says: { where: "below data_dir", minFree: "providers.native.min_free_mb" },
      logger,
      running: () => [large, small],
      sandboxOf: () => "sb-1",
      ownerOf: () => "ada",
      measure: async (ids) => new Map(ids.map((id) => [id, sizes.get(id) ?? 0])),
      space: async () => space,
      stop: (id) => {
        begun.push(id);
        return removed.promise;
      },
      stopWaitMs: 1,
    });
    using _ = { [Symbol.dispose]: removed.resolve };
    free(300);
    await guard.look();
    for (const [largeMb, smallMb] of [
      [210, 0],
      [210, 30],
      [210, 50],
    ] as const) {
      sizes.set(large, largeMb).set(small, smallMb);
      free(300 - largeMb - smallMb);
      await guard.look();
      if (smallMb < 50) expect(begun).toEqual([large]);
    }
    expect(begun).toEqual([large, small]);
    // What fills the rest is nobody's that is seen, while two stops are under way.
    free(1);
    await guard.look();
    const events = () => lines.filter(({ event }) => event !== undefined);
    expect([lines.filter(({ level }) => level === 50), events()]).toEqual([[], []]);
    removed.resolve();
    await vi.waitUntil(() => events().length === 2);
    expect(events()[0]).toMatchObject({
      event: "sandbox.stop",
      outcome: "ok",
      sandbox_id: "sb-1",
      owner_id: "ada",
      runtime_id: large,
      reason: expect.stringContaining("it had written 210 MB"),
      duration_ms: expect.any(Number),
    });
  });

  it("stops nobody whom others destroy, counts what comes back of it, and tries again when that failed", async () => {
    const sizes = new Map([
      [large, 10],
      [small, 0],
    ]);
    const destroying = new Set<RuntimeId>();
    let begins: RuntimeId | undefined;
    await using guard = new DiskGuard({
      minFreeMb: 100,
      limitMb: 200,
      says: { where: "on the engine's disk", minFree: "min_free_mb", limit: "disk_mb" },
      logger: silentLogger,
      running: () => [large, small],
      destroying: () => destroying,
      measure: async (ids) => {
        if (begins !== undefined) destroying.add(begins);
        return new Map(ids.map((id) => [id, sizes.get(id) ?? 0]));
      },
      space: async () => space,
      stop: async (id) => {
        stopped.push(id);
      },
    });
    free(150);
    await guard.look();
    // Its destroy begins while it is counted.
    begins = large;
    sizes.set(large, 210);
    await guard.look();
    expect(stopped).toEqual([]);
    begins = undefined;
    sizes.set(small, 70);
    free(80);
    await guard.look();
    expect(stopped).toEqual([]);
    free(40);
    await guard.look();
    expect(stopped).toEqual([small]);
    destroying.clear();
    await guard.look();
    expect(stopped).toEqual([small, large]);
  });

  it("goes on looking while the last one is being destroyed, which may fail", async () => {
    vi.useFakeTimers();
    using _ = { [Symbol.dispose]: () => vi.useRealTimers() };
    let destroying = [large];
    let seen = 0;
    await using guard = new DiskGuard({
      minFreeMb: 100,
      says: { where: "on the engine's disk", minFree: "min_free_mb" },
      logger: silentLogger,
      running: () => [],
      destroying: () => destroying,
      measure: async () => new Map(),
      space: async () => {
        seen++;
        return space;
      },
      stop: async () => undefined,
    });
    guard.start();
    await vi.advanceTimersByTimeAsync(6_000);
    expect(seen).toBe(2);
    destroying = [];
    await vi.advanceTimersByTimeAsync(60_000);
    expect(seen).toBe(3);
  });

  it("holds who takes too long to count to what it had written last, and counts it after the others", async () => {
    const orders: (readonly RuntimeId[])[] = [];
    let slow = false;
    await using guard = new DiskGuard({
      minFreeMb: 100,
      says: { where: "below data_dir", minFree: "providers.native.min_free_mb" },
      logger: silentLogger,
      running: () => [large, small],
      measure: async (ids) => {
        orders.push(ids);
        const sizes = new Map([
          [large, 400],
          [small, 20],
        ]);
        // The time is over when it comes to the one with so many files.
        return new Map(
          ids.slice(0, slow ? ids.indexOf(large) : ids.length).map((id) => [id, sizes.get(id) ?? 0]),
        );
      },
      space: async () => space,
      stop: async (id, reason) => {
        stopped.push(`${id} ${reason}`);
      },
    });
    (space as DiskSpace).freeMb = 150;
    await guard.look();
    slow = true;
    await guard.look();
    (space as DiskSpace).freeMb = 50;
    await guard.look();
    expect(orders).toEqual([
      [large, small],
      [large, small],
      [small, large],
    ]);
    expect(stopped).toEqual([expect.stringMatching(/^rt-large stopped: it had written 400 MB/)]);
  });

  it("counts no further once it is closed, and says nothing of that", async () => {
    const closing = new AbortController();
    closing.abort();
    const path = (id: RuntimeId) => join(root, id);
    await expect(layerSizes([small], { path, inodes: false, signal: closing.signal })).rejects.toThrow(
      "abort",
    );
    const warn = vi.spyOn(silentLogger, "warn");
    const looking = Promise.withResolvers<number>();
    const look = new RepeatedLook({
      look: () => looking.promise,
      wanted: () => true,
      firstPauseMs: 0,
      failedPauseMs: 1,
      blind: "nothing can be looked at",
      logger: silentLogger,
    });
    look.start();
    await new Promise((resolve) => setTimeout(resolve, 5));
    const closed = look[Symbol.asyncDispose]();
    looking.reject(closing.signal.reason);
    await closed;
    expect(warn).not.toHaveBeenCalled();
    warn.mockRestore();
  });

  it("stops nobody who wrote nothing, however little is free", async () => {
    await using guard = open();
    await guard.look();
    await guard.look();
    expect(stopped).toEqual([]);
  });

  it("counts a layer's own file system by the blocks of its image", async () => {
    await using guard = open();
    free(110);
    await guard.look();
    await write(small, 20, "disk.img");
    free(90);
    await guard.look();
    expect(whoStopped()).toEqual([small]);
  });

  it("counts what is written to the console beside such a file system", async () => {
    await using guard = open();
    for (const id of [small, large]) await write(id, 1, "disk.img");
    free(110);
    await guard.look();
    await write(small, 20, "console.log");
    free(90);
    await guard.look();
    expect(whoStopped()).toEqual([small]);
  });

  it("looks at inodes too", async () => {
    await using guard = open();
    space = { freeMb: 1_000, freeInodes: 5 };
    for (let index = 0; index < 1_100; index += 1) await writeFile(join(root, small, `f${index}`), "");
    await guard.look();
    expect(stopped).toEqual([expect.stringMatching(/^rt-small .*made 11\d\d files and 5 inodes were free/)]);
  });

  it("refuses spawns below the mark only", async () => {
    await using guard = open();
    await expect(guard.refuseWhenShort()).rejects.toThrow(StorageFull);
    await expect(guard.refuseWhenShort()).rejects.toThrow("50 MB were free below data_dir");
    // Never as much as the mark it is less than.
    (space as DiskSpace).freeMb = 99.7;
    await expect(guard.refuseWhenShort()).rejects.toThrow(
      "99 MB were free below data_dir, less than the 100 MB",
    );
    (space as DiskSpace).freeMb = 100;
    await guard.refuseWhenShort();
    await using off = open(0);
    (space as DiskSpace).freeMb = 0;
    await off.refuseWhenShort();
  });

  it("is asked by a spawn of its own only where space is near the mark, or a look is long ago", async () => {
    await using guard = open();
    looks = 0;
    (space as DiskSpace).freeMb = 50_000;
    const startedMs = performance.now();
    for (let n = 0; n < 100; n++) await guard.refuseWhenShort();
    expect(looks).toBeLessThan(2 + (performance.now() - startedMs) / 500);
    (space as DiskSpace).freeMb = 399;
    await guard.look();
    looks = 0;
    for (let n = 0; n < 10; n++) await guard.refuseWhenShort();
    expect(looks).toBe(10);
  });

  it("stops who wrote more than the limit, however much is free, and nobody else", async () => {
    for (const free of [{ freeMb: 50_000, freeInodes: undefined }, undefined]) {
      stopped = [];
      space = free;
      await using guard = open(100, 25);
      await writeFile(join(root, large, "file"), Buffer.alloc(30 * mb, 1));
      await writeFile(join(root, small, "file"), Buffer.alloc(20 * mb, 1));
      expect(await guard.look()).toBeLessThan(5_000);
      expect(stopped).toEqual(["rt-large stopped: it had written 30 MB, more than the 25 MB of disk_mb"]);
      expect(await guard.look()).toBeGreaterThanOrEqual(5_000);
      await guard.refuseWhenShort();
    }
  });

  it("compares no number of files with one of megabytes", async () => {
    await using guard = open();
    await writeFile(join(root, large, "file"), Buffer.alloc(30 * mb, 1));
    await writeFile(join(root, small, "file"), Buffer.alloc(20 * mb, 1));
    for (let index = 0; index < 40; index += 1) await writeFile(join(root, large, `f${index}`), "");
    space = { freeMb: 1_000, freeInodes: 5 };
    await guard.look();
    expect(stopped).toEqual([]);
    space = { freeMb: 80, freeInodes: 1_000_000 };
    await guard.look();
    expect(stopped).toEqual([]);
    await write(large, 30);
    space = { freeMb: 50, freeInodes: 1_000_000 };
    await guard.look();
    expect(whoStopped()).toEqual([large]);
  });

  it("leaves everybody alone while there is space", async () => {
    await using guard = open();
    await writeFile(join(root, large, "file"), Buffer.alloc(30 * mb, 1));
    (space as DiskSpace).freeMb = 50_000;
    expect(await guard.look()).toBe(5_000);
    expect(stopped).toEqual([]);
  });
});
