import { describe, expect, it, vi } from "vitest";
import { type Logger, silentLogger } from "../../platform/logger.ts";
import type { RuntimeId } from "../../ports/index.ts";
import { UncountedGuard } from "./uncounted-guard.ts";

const mb = 1 << 20;
const [one, two] = ["rt-one", "rt-two"] as [RuntimeId, RuntimeId];

function guarded(
  options: {
    maxPercent?: number;
    usualMb?: number;
    leastCountedMb?: number;
    owners?: Map<RuntimeId, string>;
  } = {},
) {
  const holdings = new Map([
    [one, 0],
    [two, 0],
  ]);
  const memory = { totalMb: 10_000, uncountedMb: 300, fails: false };
  const counted = { mb: 0, seenAtMb: [] as number[] };
  const stopped: string[] = [];
  const destroying = new Set<RuntimeId>();
  const usual = { mb: options.usualMb };
  const told: string[] = [];
  const tell = ({ event }: { event?: string }, message: string) => void told.push(`${event} ${message}`);
  let read = 0;
  const guard = new UncountedGuard({
    maxPercent: options.maxPercent ?? 10,
    logger: Object.assign(Object.create(silentLogger) as Logger, { warn: tell, info: tell }),
    running: () => holdings.keys(),
    destroying: () => destroying,
    stops: "stopped: what it has ",
    name: "memory",
    of: "what it has",
    holdings: async (ids) => {
      read++;
      return new Map(ids.map((id) => [id, (holdings.get(id) ?? 0) * mb]));
    },
    memory: async () => {
      if (memory.fails) throw new Error("hidden");
      return memory;
    },
    counted: async () => counted.mb * mb,
    ...(options.leastCountedMb !== undefined && {
      leastCounted: async () => (options.leastCountedMb ?? 0) * mb,
    }),
    seeOthers: async () => {
      counted.seenAtMb.push(memory.uncountedMb);
    },
    usual: {
      read: async () => usual.mb,
      write: async (mb) => {
        usual.mb = mb;
      },
    },
    sandboxOf: () => undefined,
    ownerOf: (id) => options.owners?.get(id),
    stop: async (id, reason) => {
      holdings.delete(id);
      stopped.push(`${id} ${reason}`);
    },
  });
  return { guard, holdings, memory, counted, usual, stopped, destroying, told, reads: () => read };
}

describe("the guard of what is counted for nobody", () => {
  it("stops who can hold most, with the figures in the reason", async () => {
    const { guard, holdings, memory, stopped } = guarded();
    await guard.look();
    memory.uncountedMb = 1_500;
    holdings.set(one, 400).set(two, 900);
    await guard.look();
    expect(stopped).toEqual([
      expect.stringMatching(
        /^rt-two stopped: .* up to 900 MB, and 1200 MB .* 10 % of .*max_uncounted_percent$/,
      ),
    ]);
  });

  it("tells what has grown when nobody is to blame, again while it lasts, and when it is over", async () => {
    const clock = vi.spyOn(performance, "now").mockReturnValue(0);
    try {
      const { guard, memory, told } = guarded();
      await guard.look();
      memory.uncountedMb = 1_500;
      await guard.look();
      await guard.look();
      expect(told).toEqual([expect.stringMatching(/^memory.uncounted 1200 MB .*\(what it has\)$/)]);
      clock.mockReturnValue(2 * 3_600_000);
      await guard.look();
      await guard.look();
      expect(told).toHaveLength(2);
      memory.uncountedMb = 400;
      await guard.look();
      await guard.look();
      expect(told.slice(2)).toEqual([expect.stringMatching(/^memory.usual .*\(what it has\)$/)]);
    } finally {
      clock.mockRestore();
    }
  });

  it("is helpless while nobody is to blame and there is somebody to stop", async () => {
    const { guard, holdings, memory, stopped } = guarded();
    const helpless = async () => {
      await guard.look();
      return guard.states;
    };
    expect(await helpless()).toEqual([{ guard: "memory", helpless: false }]);
    memory.uncountedMb = 1_500;
    expect(await helpless()).toEqual([{ guard: "memory", helpless: true }]);
    // It comes and goes about the most that may be.
    memory.uncountedMb = 1_290;
    expect(await helpless()).toEqual([{ guard: "memory", helpless: true }]);
    memory.uncountedMb = 400;
    expect(await helpless()).toEqual([{ guard: "memory", helpless: false }]);
    memory.uncountedMb = 1_500;
    expect(await helpless()).toEqual([{ guard: "memory", helpless: true }]);
    // More, so that it does not rest after the look in vain.
    memory.uncountedMb = 1_700;
    holdings.set(one, 1_600);
    expect(await helpless()).toEqual([{ guard: "memory", helpless: false }]);
    expect(stopped).toHaveLength(1);
    expect(guarded({ maxPercent: 0 }).guard.states).toEqual([]);
  });

  it("is helpless while it waits for more after a stop that did not help", async () => {
    const clock = vi.spyOn(performance, "now").mockReturnValue(0);
    try {
      const { guard, holdings, memory } = guarded();
      await guard.look();
      memory.uncountedMb = 1_500;
      holdings.set(one, 900);
      await guard.look();
      await guard.look();
      expect(guard.states).toEqual([{ guard: "memory", helpless: false }]);
      clock.mockReturnValue(20_000);
      await guard.look();
      expect(guard.states).toEqual([{ guard: "memory", helpless: true }]);
      holdings.clear();
      expect(guard.states).toEqual([{ guard: "memory", helpless: false }]);
    } finally {
      clock.mockRestore();
    }
  });

  it("is helpless while the machine's memory cannot be looked at", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    try {
      const { guard: made, memory } = guarded();
      await using guard = made;
      memory.fails = true;
      guard.start();
      expect(guard.states).toEqual([{ guard: "memory", helpless: false }]);
      await vi.advanceTimersByTimeAsync(1_000);
      expect(guard.states).toEqual([{ guard: "memory", helpless: true }]);
      memory.fails = false;
      await vi.advanceTimersByTimeAsync(3_000);
      expect(guard.states).toEqual([{ guard: "memory", helpless: false }]);
    } finally {
      vi.useRealTimers();
    }
  });

  it("tells growth that comes and goes about the most that may be once in an hour", async () => {
    const { guard, memory, told } = guarded();
    await guard.look();
    for (let look = 0; look < 6; look++) {
      memory.uncountedMb = look % 2 === 0 ? 1_500 : 1_290;
      await guard.look();
    }
    expect(told).toEqual([expect.stringMatching(/^memory.uncounted /)]);
  });

  it("has nobody answer for what is counted for somebody, and takes none of it for usual", async () => {
    const { guard, holdings, memory, counted, stopped } = guarded();
    memory.uncountedMb = 1_300;
    counted.mb = 1_000;
    await guard.look();
    memory.uncountedMb = 3_000;
    counted.mb = 2_500;
    holdings.set(one, 9_000);
    await guard.look();
    expect(stopped).toEqual([]);
    counted.mb = 1_000;
    await guard.look();
    expect(stopped).toEqual([expect.stringMatching(/^rt-one stopped: .* and 1700 MB /)]);
  });

  it("sees what others have only while little has grown", async () => {
    const { guard, memory, counted } = guarded();
    for (const uncountedMb of [300, 800, 801, 1_300, 1_301, 700]) {
      memory.uncountedMb = uncountedMb;
      await guard.look();
    }
    expect(counted.seenAtMb).toEqual([300, 800, 700]);
  });

  it("goes on while it is not enough, one at a look", async () => {
    const { guard, holdings, memory, stopped } = guarded();
    await guard.look();
    memory.uncountedMb = 5_000;
    holdings.set(one, 4_000).set(two, 4_500);
    await guard.look();
    expect(stopped).toHaveLength(1);
    memory.uncountedMb = 4_000;
    await guard.look();
    expect(stopped).toHaveLength(2);
  });

  it("ends no second one when the first was to no avail, until more has grown", async () => {
    const { guard, holdings, memory, stopped } = guarded();
    await guard.look();
    holdings.set(one, 4_000).set(two, 4_500);
    // The machine's own, say.
    for (const [uncountedMb, ends] of [
      [1_500, 1],
      [1_490, 1],
      [1_620, 1],
      [1_630, 2],
    ] as const) {
      memory.uncountedMb = uncountedMb;
      await guard.look();
      expect(stopped).toHaveLength(ends);
    }
  });

  it.each([
    ["goes up and down about the most that may be", (look: number) => 1_300 + (look % 2 === 0 ? 5 : -5)],
    ["becomes less by what sandboxes take beside", (look: number) => 1_600 - look * 3],
  ])("ends no second one while what the machine has for itself %s", async (_what, at) => {
    const { guard, holdings, memory, stopped } = guarded();
    await guard.look();
    holdings.set(one, 4_000).set(two, 4_500);
    for (let look = 0; look < 20; look++) {
      memory.uncountedMb = at(look);
      await guard.look();
    }
    expect(stopped).toHaveLength(1);
  });

  it("ends nobody for what one that is being destroyed still has, and waits for those no longer than two seconds", async () => {
    vi.useFakeTimers();
    try {
      const { guard, holdings, memory, stopped, destroying } = guarded();
      await guard.look();
      holdings.set(one, 900);
      destroying.add(two);
      memory.uncountedMb = 1_500;
      await guard.look();
      memory.uncountedMb = 300;
      await guard.look();
      expect(stopped).toHaveLength(0);
      memory.uncountedMb = 1_500;
      for (const ends of [0, 0, 0, 0, 1]) {
        await guard.look();
        expect(stopped).toHaveLength(ends);
        vi.advanceTimersByTime(500);
      }
    } finally {
      vi.useRealTimers();
    }
  });

  it("waits again for who is being destroyed once a minute, where they go on all the time", async () => {
    vi.useFakeTimers();
    try {
      const { guard, memory, destroying, reads } = guarded();
      await guard.look();
      destroying.add(two);
      memory.uncountedMb = 1_500;
      const readAt: number[] = [];
      const began = performance.now();
      for (let before = 0; performance.now() - began < 70_000; before = reads()) {
        await guard.look();
        if (reads() > before) readAt.push((performance.now() - began) / 1_000);
        memory.uncountedMb += 200;
        vi.advanceTimersByTime(500);
      }
      expect(readAt[0]).toBe(2);
      expect(readAt).toContain(60);
      expect(readAt.filter((s) => s > 60 && s < 62.5)).toEqual([]);
      expect(readAt).toContain(62.5);
    } finally {
      vi.useRealTimers();
    }
  });

  it("looks ever more rarely while nobody is to blame and no more grows, a minute apart at most, and at once when more has", async () => {
    vi.useFakeTimers();
    try {
      const { guard, memory, reads } = guarded();
      await guard.look();
      memory.uncountedMb = 1_500;
      const readsWithin = async (seconds: number) => {
        const before = reads();
        for (const end = performance.now() + seconds * 1_000; performance.now() < end; )
          vi.advanceTimersByTime(await guard.look());
        return reads() - before;
      };
      expect(await readsWithin(16)).toBe(8);
      await readsWithin(120);
      expect(await readsWithin(600)).toBeLessThanOrEqual(11);
      memory.uncountedMb = 1_700;
      expect(await readsWithin(2)).toBe(1);
      expect(await readsWithin(14)).toBe(7);
    } finally {
      vi.useRealTimers();
    }
  });

  it("takes what has become less long after an end for no help of that", async () => {
    vi.useFakeTimers();
    try {
      const { guard, holdings, memory, stopped } = guarded();
      await guard.look();
      holdings.set(one, 4_000).set(two, 4_500);
      memory.uncountedMb = 1_500;
      await guard.look();
      vi.advanceTimersByTime(10_000);
      memory.uncountedMb = 1_400;
      await guard.look();
      expect(stopped).toHaveLength(1);
    } finally {
      vi.useRealTimers();
    }
  });

  it("stops nobody when sandboxes explain less than half of it", async () => {
    const { guard, holdings, memory, stopped } = guarded();
    await guard.look();
    memory.uncountedMb = 9_000;
    holdings.set(one, 2_000).set(two, 2_000);
    await guard.look();
    expect(stopped).toEqual([]);
  });

  it("asks for nobody's while memory is as usual", async () => {
    const { guard, memory, reads } = guarded();
    await guard.look();
    const first = reads();
    memory.uncountedMb = 1_299;
    await guard.look();
    expect(reads()).toBe(first);
  });

  it("takes what was held before the service started for no usual use where it is remembered", async () => {
    const { guard, holdings, memory, stopped } = guarded({ usualMb: 200 });
    memory.uncountedMb = 2_000;
    holdings.set(one, 1_800);
    await guard.look();
    expect(stopped).toEqual([expect.stringContaining("rt-one")]);
  });

  it("sees what is usual before there is a sandbox, however soon that attacks", async () => {
    const { guard, holdings, memory, stopped } = guarded();
    await guard.begin();
    memory.uncountedMb = 2_000;
    holdings.set(one, 1_800);
    await guard.look();
    expect(stopped).toEqual([expect.stringContaining("rt-one")]);
  });

  it("sees what others have before there is a sandbox, each time there is none", async () => {
    const { guard, holdings, memory, counted } = guarded();
    await guard.begin();
    await guard.seeOthers();
    expect(counted.seenAtMb).toEqual([]);
    holdings.clear();
    for (const uncountedMb of [300, 2_000]) {
      memory.uncountedMb = uncountedMb;
      await guard.seeOthers();
    }
    expect(counted.seenAtMb).toEqual([300, 2_000]);
  });

  it("stops nobody for a restart of the service: nothing has grown", async () => {
    const first = guarded();
    first.memory.uncountedMb = 3_000;
    await first.guard.look();
    expect(first.usual.mb).toBe(3_000);
    for (const usualMb of [first.usual.mb ?? 0, undefined]) {
      const { guard, holdings, memory, stopped } = guarded(usualMb === undefined ? {} : { usualMb });
      memory.uncountedMb = 3_200;
      holdings.set(one, 2_040);
      await guard.look();
      expect(stopped).toEqual([]);
    }
  });

  it("takes no more off what is usual than sandboxes have at least, when nobody remembers it", async () => {
    const { guard, memory, counted, usual } = guarded({ leastCountedMb: 200 });
    memory.uncountedMb = 2_000;
    // What can be given back is in it.
    counted.mb = 1_900;
    await guard.look();
    expect(usual.mb).toBe(1_800);
  });

  it("has who spreads over many sandboxes answer for all of them, before who has the largest one", async () => {
    const hostile = Array.from({ length: 10 }, (_, n) => `rt-hostile-${n}` as RuntimeId);
    const { guard, holdings, memory, stopped } = guarded({
      owners: new Map(hostile.map((id) => [id, "mallory"])),
    });
    await guard.look();
    for (const id of hostile) holdings.set(id, 130);
    holdings.set(one, 170);
    memory.uncountedMb = 1_600;
    await guard.look();
    expect(stopped).toEqual([expect.stringMatching(/^rt-hostile-/)]);
  });

  it("compares with the least that there was", async () => {
    const { guard, holdings, memory, stopped } = guarded();
    memory.uncountedMb = 3_000;
    await guard.look();
    memory.uncountedMb = 500;
    await guard.look();
    memory.uncountedMb = 1_600;
    holdings.set(two, 1_000);
    await guard.look();
    expect(stopped).toHaveLength(1);
  });

  it("never ends anybody for what a processor keeps free for itself on a small machine", async () => {
    const { guard, holdings, memory, stopped } = guarded({ maxPercent: 1 });
    await guard.look();
    memory.uncountedMb = 550;
    holdings.set(one, 1_000);
    await guard.look();
    expect(stopped).toEqual([]);
  });
});
