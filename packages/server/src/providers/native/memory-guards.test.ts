import { tmpdir } from "node:os";
import { setImmediate as turn } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import type { RuntimeId } from "../../ports/index.ts";
import type { Cgroups } from "./cgroups.ts";
import { MemoryGuards } from "./memory-guards.ts";
import { RuntimeDirectories } from "./runtime-directories.ts";

describe("what others have of the machine's memory", () => {
  let running: RuntimeId[];
  let seen: number;
  let fails: boolean;
  let guards: MemoryGuards;
  /** Asked for, and handed on. */
  const see = async () => {
    guards.seeOthersSoon();
    for (let turns = 0; turns < 10; turns += 1) await turn();
    return seen;
  };

  beforeEach(() => {
    vi.useFakeTimers({ toFake: ["performance"] });
    [running, seen, fails] = [[], 0, false];
    const groups: Pick<Cgroups, "seeNobodysMemory"> = {
      seeNobodysMemory: async () => {
        seen += 1;
        if (fails) throw new Error("it cannot be read");
      },
    };
    const nothing = () => undefined;
    guards = new MemoryGuards({
      maxPercent: 10,
      logger: silentLogger,
      directories: new RuntimeDirectories({ dataDir: tmpdir() }),
      running: () => running,
      destroying: () => [],
      sandboxOf: nothing,
      ownerOf: nothing,
      lowerOf: () => "/",
      stillOf: nothing,
      cgroups: async () => groups as Cgroups,
      stop: async () => undefined,
    });
  });
  afterEach(async () => {
    vi.useRealTimers();
    await guards[Symbol.asyncDispose]();
  });

  it("is seen four times a second at most, however many launches ask for it", async () => {
    expect([await see(), await see()]).toEqual([1, 1]);
    vi.advanceTimersByTime(249);
    expect(await see()).toBe(1);
    vi.advanceTimersByTime(1);
    expect(await see()).toBe(2);
  });

  it("is seen as soon as nothing runs, and anew where it could not be", async () => {
    running = ["rt-one" as RuntimeId];
    expect(await see()).toBe(0);
    [running, fails] = [[], true];
    expect([await see(), await see()]).toEqual([1, 2]);
    fails = false;
    expect([await see(), await see()]).toEqual([3, 3]);
  });
});
