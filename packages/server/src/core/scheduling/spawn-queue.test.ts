import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { CallerGone } from "../../platform/deadline.ts";
import { capacityDenial, ResourceLimit, type SandboxId } from "../../ports/index.ts";
import { Limits } from "../quotas/limits.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, RecordingSink, testDefaults } from "../testing/harness.ts";
import { denied } from "./admission.ts";
import { type ReserveDenied, type ReserveResult, SpawnQueue } from "./spawn-queue.ts";

const taken = (sandboxes: number) => ({ sandboxes, memoryMb: 512 * sandboxes, vcpus: sandboxes });

const nothing = async () => undefined;

/** Capacity in memory, and a queue on it. */
function bench(options: {
  capacity: number;
  perOwner?: number;
  maxWaiting?: number;
  timeoutMs?: number;
  overflow?: "reject" | "queue";
}) {
  const clock = new FakeClock();
  const events = new RecordingSink();
  const held: string[] = [];
  const admitted: string[] = [];
  const defaults = {
    ...testDefaults,
    maxSandboxes: options.capacity,
    maxSandboxesPerOwner: options.perOwner ?? 0,
  };
  const queue = new SpawnQueue({
    clock,
    events,
    rules: () => ({
      poolOverflow: "reject",
      overflow: options.overflow ?? "queue",
      timeoutMs: options.timeoutMs ?? 30_000,
      maxWaiting: options.maxWaiting ?? 100,
    }),
    denied: (ownerId, result) => denied(ownerId, result, { memoryMb: 512, vcpus: 1 }),
  });
  const attempts = new Map<string, number>();
  const attempt = async (ownerId: string): Promise<ReserveResult> => {
    attempts.set(ownerId, (attempts.get(ownerId) ?? 0) + 1);
    await Promise.resolve();
    const wanted = { ownerId, memoryMb: 512, vcpus: 1 };
    const own = held.filter((owner) => owner === ownerId).length;
    const inUse = { all: taken(held.length), owner: taken(own) };
    const limits = new Limits(defaults).current(ownerId);
    const denial = capacityDenial(inUse, limits, wanted);
    if (denial !== undefined) return { admitted: false, ...denial, inUse, limits };
    held.push(ownerId);
    return { admitted: true };
  };
  const admit = (ownerId: string, name: string, signal: AbortSignal = forever) =>
    queue
      .admit({ ownerId, sandboxId: name, attempt: () => attempt(ownerId), look: nothing, signal })
      .then(() => void admitted.push(name));
  const free = async (ownerId: string) => {
    held.splice(held.indexOf(ownerId), 1);
    queue.capacityFreed(ownerId);
    await settle();
  };
  return { clock, events, queue, held, admitted, admit, free, attempts };
}

describe("SpawnQueue", () => {
  it("refuses at once what can never fit, and lets others of its owner pass", async () => {
    const { queue } = bench({ capacity: 1 });
    const limits = new Limits(testDefaults).current("a");
    const inUse = { all: taken(0), owner: taken(0) };
    const denial = { admitted: false, reason: "max_vcpus_per_owner", hopeless: true, inUse, limits } as const;
    const never = queue.admit({
      ownerId: "a",
      sandboxId: "1",
      attempt: async () => denial,
      look: nothing,
      signal: forever,
    });
    await expect(never).rejects.toThrow("fewer than this sandbox asks for");
    await queue.admit({
      ownerId: "a",
      sandboxId: "2",
      attempt: async () => ({ admitted: true }),
      look: nothing,
      signal: forever,
    });
    expect(queue.depth).toBe(0);
  });

  it("refuses at once what time cannot help, also behind others who wait", async () => {
    const b = bench({ capacity: 1 });
    await b.admit("x", "first");
    const waiting = b.admit("x", "second");
    await settle();
    const limits = new Limits(testDefaults).current("a");
    const inUse = { all: taken(1), owner: taken(0) };
    const admit = (seen: ReserveDenied) =>
      b.queue.admit({
        ownerId: "a",
        sandboxId: "never",
        attempt: async () => {
          throw new Error("nobody may pass those who wait");
        },
        look: async () => seen,
        signal: forever,
      });
    const hopeless = {
      admitted: false,
      reason: "max_vcpus_per_owner",
      hopeless: true,
      inUse,
      limits,
    } as const;
    await expect(admit(hopeless)).rejects.toMatchObject({ details: { reason: "max_vcpus_per_owner" } });
    const named = { admitted: false, reason: "name_taken", sandboxId: "sb-1" as SandboxId } as const;
    await expect(admit(named)).rejects.toThrow("has this name already");
    expect([b.queue.depth, b.admitted]).toEqual([1, ["first"]]);
    await b.free("x");
    await waiting;
  });

  it("refuses at once when overflow is reject", async () => {
    const b = bench({ capacity: 1, overflow: "reject" });
    await b.admit("a", "1");
    const refused = b.admit("a", "2");
    await expect(refused).rejects.toThrow(/may hold 1 sandboxes and has 1/);
    await expect(refused).rejects.toMatchObject({ code: "resource_limit", retryAfterS: 5 });
  });

  it("serves one owner in order and owners in turn", async () => {
    const b = bench({ capacity: 1 });
    await b.admit("x", "first");
    const all = ["a1", "a2", "a3", "b1", "b2", "c1"].map((name) => b.admit(name[0] ?? "", name));
    await settle();
    expect(b.queue.depth).toBe(6);
    await b.free("x");
    for (let i = 0; i < 5; i++) await b.free(b.held[0] ?? "");
    await Promise.all(all);
    expect(b.admitted).toEqual(["first", "a1", "b1", "c1", "a2", "b2", "a3"]);
    expect(b.queue.depth).toBe(0);
    expect(b.events.types().filter((type) => type === "spawn.queued")).toHaveLength(6);
    expect(b.events.types().filter((type) => type === "spawn.dequeued")).toHaveLength(6);
    expect(b.clock.armed).toBe(0);
  });

  it("does not let an owner at its own limit hold up the others", async () => {
    const b = bench({ capacity: 3, perOwner: 1 });
    await b.admit("a", "a1");
    const blocked = b.admit("a", "a2");
    await settle();
    await b.admit("b", "b1");
    expect(b.admitted).toEqual(["a1", "b1"]);
    await b.free("a");
    await blocked;
    expect(b.admitted).toEqual(["a1", "b1", "a2"]);
  });

  it("asks owners at their own limit again only when they give something back or limits change", async () => {
    const b = bench({ capacity: 10, perOwner: 1 });
    for (const owner of ["a", "b", "c"]) await b.admit(owner, `${owner}1`);
    const waiting = ["a", "b", "c"].map((owner) => b.admit(owner, `${owner}2`));
    await settle();
    const asked = () => ["a", "b", "c"].map((owner) => b.attempts.get(owner) ?? 0);
    const before = asked();
    b.queue.capacityFreed("d");
    await settle();
    expect(asked()).toEqual(before);
    await b.free("b");
    expect(asked().map((count, index) => count - (before[index] ?? 0))).toEqual([0, 1, 0]);
    expect(b.admitted).toContain("b2");
    b.queue.capacityFreed();
    await settle();
    expect(asked().map((count, index) => count - (before[index] ?? 0))).toEqual([1, 1, 1]);
    await b.free("a");
    await b.free("c");
    await Promise.all(waiting);
  });

  it("asks nobody again for what nobody has given back, whoever arrives", async () => {
    const b = bench({ capacity: 0 });
    const limits = new Limits({ ...testDefaults, maxMemoryMb: 512 }).current("a");
    const inUse = { all: taken(1), owner: taken(0) };
    let attempts = 0;
    const admit = (ownerId: string) =>
      b.queue.admit({
        ownerId,
        sandboxId: ownerId,
        attempt: async () => {
          attempts++;
          return { admitted: false, reason: "max_memory_mb", hopeless: false, inUse, limits };
        },
        look: nothing,
        signal: forever,
      });
    const waiting: Promise<unknown>[] = [];
    for (let n = 0; n < 40; n++) {
      waiting.push(admit(`owner ${n}`).catch(() => undefined));
      await settle();
    }
    // The very first asks twice: before it waits, and in the line.
    expect(attempts).toBe(41);
    b.queue.capacityFreed("somebody");
    await settle();
    expect(attempts).toBe(81);
    b.queue.close();
    await Promise.all(waiting);
  });

  it("lets the next of an owner try when the first one leaves", async () => {
    const b = bench({ capacity: 10 });
    const denial = { admitted: false, reason: "max_sandboxes_per_owner" } as const;
    const inUse = { all: taken(1), owner: taken(1) };
    const limits = new Limits(testDefaults).current("a");
    const caller = new AbortController();
    const large = b.queue.admit({
      ownerId: "a",
      sandboxId: "large",
      attempt: async () => ({ ...denial, inUse, limits, hopeless: false }),
      look: nothing,
      signal: caller.signal,
    });
    await settle();
    const small = b.admit("a", "small");
    await settle();
    expect(b.admitted).toEqual([]);
    caller.abort(new Error("left"));
    await expect(large).rejects.toThrow("left");
    await small;
    expect(b.admitted).toEqual(["small"]);
  });

  it("ends a wait with ResourceLimit when its time is up", async () => {
    const b = bench({ capacity: 1, timeoutMs: 5_000 });
    await b.admit("a", "a1");
    const waiting = b.admit("a", "a2");
    const outcome = Promise.all([
      expect(waiting).rejects.toThrow(/waited 5s for capacity in vain/),
      expect(waiting).rejects.toMatchObject({
        retryAfterS: 5,
        details: { reason: "max_sandboxes", queue: "timeout", waited_ms: 5_000 },
      }),
    ]);
    await settle();
    await b.clock.advance(5_000);
    await outcome;
    expect(b.events.types()).toEqual(["spawn.queued", "spawn.queue_timeout"]);
    expect(b.queue.depth).toBe(0);
    expect(b.clock.armed).toBe(0);
  });

  it("gives the place of a waiter that leaves to the next", async () => {
    const b = bench({ capacity: 1, maxWaiting: 1 });
    await b.admit("a", "a1");
    const caller = new AbortController();
    const leaving = b.admit("a", "a2", caller.signal);
    const left = expect(leaving).rejects.toBeInstanceOf(CallerGone);
    await settle();
    expect([b.queue.hasPlace("b"), b.queue.hasPlace("")]).toEqual([false, false]);
    const refused = b.admit("b", "b1");
    await expect(refused).rejects.toThrow(/1 spawns wait already/);
    await expect(refused).rejects.toMatchObject({ details: { reason: "max_sandboxes", queue: "full" } });
    caller.abort(new CallerGone());
    await left;
    expect(b.events.types()).toEqual(["spawn.queued", "spawn.left"]);
    const next = b.admit("b", "b2");
    await settle();
    await b.free("a");
    await next;
    expect(b.admitted).toEqual(["a1", "b2"]);
  });

  it("fails at once when the queue timeout is zero", async () => {
    const b = bench({ capacity: 1, timeoutMs: 0 });
    await b.admit("a", "a1");
    await expect(b.admit("a", "a2")).rejects.toBeInstanceOf(ResourceLimit);
    expect(b.events.types()).toEqual([]);
  });

  it("refuses everybody at shutdown", async () => {
    const b = bench({ capacity: 1 });
    await b.admit("a", "a1");
    const waiting = expect(b.admit("a", "a2")).rejects.toThrow(/shutting down/);
    await settle();
    b.queue.close();
    await waiting;
    await expect(b.admit("a", "a3")).rejects.toThrow(/shutting down/);
    expect(b.clock.armed).toBe(0);
  });

  it("tells how each that waited has left, and how long it waited", async () => {
    const b = bench({ capacity: 1 });
    await b.admit("a", "first");
    const refusals: Promise<unknown>[] = [];
    const wait = (name: string, signal?: AbortSignal) => {
      refusals.push(expect(b.admit("a", name, signal)).rejects.toThrow());
    };
    const [gone, destroyed] = [new AbortController(), new AbortController()];
    wait("gone", gone.signal);
    wait("destroyed", destroyed.signal);
    const inUse = { all: taken(1), owner: taken(0) };
    const limits = new Limits(testDefaults).current("b");
    const attempted = { admitted: false, reason: "max_memory_mb_per_owner", inUse, limits } as const;
    let hopeless = false;
    const refused = b.queue.admit({
      ownerId: "b",
      sandboxId: "refused",
      attempt: async () => ({ ...attempted, hopeless }),
      look: nothing,
      signal: forever,
    });
    refusals.push(expect(refused).rejects.toThrow("fewer than this sandbox asks for"));
    wait("last");
    await settle();
    await b.clock.advance(1_000);
    gone.abort(new CallerGone());
    destroyed.abort(new Error("destroyed meanwhile"));
    hopeless = true;
    b.queue.capacityFreed();
    await settle();
    b.queue.close();
    await Promise.all(refusals);
    const told = b.events.events.filter(({ type }) => type === "spawn.left");
    expect(Object.fromEntries(told.map(({ sandboxId, data }) => [sandboxId, data]))).toEqual({
      gone: { owner_id: "a", outcome: "left", waited_ms: 1_000 },
      destroyed: { owner_id: "a", outcome: "cancelled", waited_ms: 1_000 },
      refused: { owner_id: "b", outcome: "refused", waited_ms: 1_000 },
      last: { owner_id: "a", outcome: "shutdown", waited_ms: 1_000 },
    });
    expect(told).toHaveLength(4);
    expect(b.queue.stats).toMatchObject({ queuedTotal: 4, dequeuedTotal: 0, timeouts: 0, waitCount: 4 });
  });

  it("never exceeds its limits, keeps each owner's order and forgets nobody, whatever comes", async () => {
    const step = fc.oneof(
      fc.record({ do: fc.constant("spawn" as const), owner: fc.constantFrom("a", "b", "c") }),
      fc.record({ do: fc.constant("free" as const), at: fc.nat(5) }),
      fc.record({ do: fc.constant("leave" as const), at: fc.nat(20) }),
      fc.record({ do: fc.constant("settle" as const) }),
    );
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
        const b = bench({ capacity: 3, perOwner: 2, maxWaiting: 8 });
        const callers: { owner: string; controller: AbortController; name: string; state: string }[] = [];
        const outcomes: Promise<void>[] = [];
        for (const one of steps) {
          if (one.do === "spawn") {
            const controller = new AbortController();
            const caller = {
              owner: one.owner,
              controller,
              name: `${one.owner}${callers.length}`,
              state: "open",
            };
            callers.push(caller);
            outcomes.push(
              b.admit(one.owner, caller.name, controller.signal).then(
                () => {
                  caller.state = "admitted";
                },
                () => {
                  caller.state = "refused";
                },
              ),
            );
          } else if (one.do === "free") {
            const owner = b.held[one.at];
            if (owner !== undefined) await b.free(owner);
          } else if (one.do === "leave") {
            callers[one.at]?.controller.abort(new CallerGone());
          } else {
            await settle();
          }
          expect(b.held.length).toBeLessThanOrEqual(3);
          for (const owner of "abc") expect(b.held.filter((o) => o === owner).length).toBeLessThanOrEqual(2);
          expect(b.queue.depth).toBeLessThanOrEqual(8);
        }
        await settle();
        while (b.held.length > 0) await b.free(b.held[0] ?? "");
        await settle();
        await Promise.all(outcomes);
        for (const owner of "abc") {
          const asked = callers.filter((c) => c.owner === owner && c.state === "admitted").map((c) => c.name);
          expect(b.admitted.filter((name) => name.startsWith(owner))).toEqual(asked);
        }
        expect(b.queue.depth).toBe(0);
        expect(b.clock.armed).toBe(0);
        const told = (...types: string[]) =>
          b.events.events.filter(({ type }) => types.includes(type)).map(({ sandboxId }) => sandboxId);
        const ends = told("spawn.dequeued", "spawn.queue_timeout", "spawn.left");
        expect(ends.sort()).toEqual(told("spawn.queued").sort());
      }),
      { numRuns: 100, timeout: 2_000 },
    );
  });
});
