import fc from "fast-check";
import { expect, it } from "vitest";
import { type Capacity, capacityDenial, type SandboxId } from "../../ports/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { RecordingSink } from "../testing/harness.ts";
import { denied } from "./admission.ts";
import { type ReserveDenied, type ReserveResult, SpawnQueue } from "./spawn-queue.ts";

interface Held {
  ownerId: string;
  /** Empty: none. */
  name: string;
  memoryMb: number;
  vcpus: number;
}
interface Waiter extends Held {
  open: boolean;
  /** No waiting could have helped it at any time since it came. */
  doomed: boolean;
  /** In which turn of the event loop it came. */
  readonly turn: number;
  readonly leaving: AbortController;
}

const owners = ["a", "b", "c"] as const;
const capacity = (sandboxes: number, memoryMb: number, vcpus: number): Capacity => ({
  sandboxes,
  memoryMb,
  vcpus,
});
const sum = (rows: readonly Held[]): Capacity => ({
  sandboxes: rows.length,
  memoryMb: rows.reduce((total, row) => total + row.memoryMb, 0),
  vcpus: rows.reduce((total, row) => total + row.vcpus, 0),
});

/** Limits of memory and processors, of all and of each owner, and spawns of every size on a queue in front of them. */
class World {
  readonly clock = new FakeClock();
  all = capacity(4, 8, 8);
  readonly ofOwner = new Map<string, Capacity>([
    ["a", capacity(2, 4, 0)],
    ["b", capacity(2, 0, 4)],
    ["c", capacity(0, 0, 0)],
  ]);
  readonly held: Waiter[] = [];
  readonly waiters: Waiter[] = [];
  turn = 0;
  readonly #turns: number;
  readonly queue = new SpawnQueue({
    clock: this.clock,
    events: new RecordingSink(),
    rules: () => ({ overflow: "queue", poolOverflow: "queue", timeoutMs: 30_000, maxWaiting: 1_000 }),
    denied: (ownerId, result) => denied(ownerId, result, { memoryMb: 512, vcpus: 1 }),
  });

  /** @param turns how many microtasks an attempt takes before and after it looks. */
  constructor(turns: number) {
    this.#turns = turns;
  }

  spawn(ownerId: string, name: string, memoryMb: number, vcpus: number): void {
    const waiter: Waiter = {
      ownerId,
      name,
      memoryMb,
      vcpus,
      open: true,
      doomed: true,
      turn: this.turn,
      leaving: new AbortController(),
    };
    this.waiters.push(waiter);
    this.review();
    const request = {
      ownerId,
      sandboxId: String(this.waiters.length),
      attempt: () => this.#attempt(waiter),
      look: async () => {
        await this.#pass();
        return this.#denial(waiter);
      },
      signal: waiter.leaving.signal,
    };
    void this.queue
      .admit(request)
      .then(
        () => waiter.leaving.signal.aborted && this.free(waiter),
        () => undefined,
      )
      .finally(() => {
        waiter.open = false;
      });
  }

  free(waiter: Waiter | undefined): void {
    const index = waiter === undefined ? -1 : this.held.indexOf(waiter);
    if (waiter === undefined || index < 0) return;
    this.held.splice(index, 1);
    this.review();
    this.queue.capacityFreed(waiter.ownerId);
  }

  /** The first of each owner that fits, and waits all the same. Spawns of one turn of the event loop may change places. */
  stuck(): Waiter[] {
    return owners.flatMap((owner) => {
      const open = this.waiters.filter((waiter) => waiter.open && waiter.ownerId === owner);
      const first = open.filter(({ turn }) => turn === open[0]?.turn);
      return first.every((waiter) => this.#denial(waiter) === undefined) ? first : [];
    });
  }

  /** Those that nobody could help when they came, nor since, and that wait all the same. */
  doomed(): Waiter[] {
    this.review();
    return this.waiters.filter(({ open, doomed }) => open && doomed);
  }

  /** After whatever may help somebody. */
  review(): void {
    for (const waiter of this.waiters) {
      const denial = waiter.doomed ? this.#denial(waiter) : undefined;
      waiter.doomed = denial !== undefined && (!("hopeless" in denial) || denial.hopeless);
    }
  }

  #denial(wanted: Held): ReserveDenied | undefined {
    const namesake = this.held.find(
      ({ ownerId, name }) => name !== "" && name === wanted.name && ownerId === wanted.ownerId,
    );
    if (namesake !== undefined)
      return { admitted: false, reason: "name_taken", sandboxId: "sb-held" as SandboxId };
    const inUse = {
      all: sum(this.held),
      owner: sum(this.held.filter(({ ownerId }) => ownerId === wanted.ownerId)),
    };
    const limits = { all: this.all, owner: this.ofOwner.get(wanted.ownerId) ?? capacity(0, 0, 0) };
    const denial = capacityDenial(inUse, limits, wanted);
    return denial && { admitted: false, ...denial, inUse, limits };
  }

  async #attempt(waiter: Waiter): Promise<ReserveResult> {
    await this.#pass();
    const denial = this.#denial(waiter);
    if (denial === undefined) this.held.push(waiter);
    await this.#pass();
    return denial ?? { admitted: true };
  }

  async #pass(): Promise<void> {
    for (let turn = 0; turn < this.#turns; turn++) await Promise.resolve();
  }
}

const owner = fc.constantFrom(...owners);
const count = (most: number) => fc.nat(most);
const step: fc.Arbitrary<(world: World) => unknown> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc
      .tuple(
        owner,
        fc.constantFrom("", "", "x"),
        fc.integer({ min: 1, max: 4 }),
        fc.integer({ min: 1, max: 4 }),
      )
      .map((wanted) => (world: World) => world.spawn(...wanted)),
  },
  { weight: 2, arbitrary: count(3).map((at) => (world: World) => world.free(world.held[at])) },
  {
    weight: 2,
    arbitrary: fc.tuple(count(20), count(6)).map(([at, late]) => async (world: World) => {
      for (let turn = 0; turn < late; turn++) await Promise.resolve();
      world.waiters[at]?.leaving.abort(new Error("left"));
    }),
  },
  {
    weight: 1,
    arbitrary: fc.tuple(owner, count(3), count(6), count(6)).map(([ownerId, ...limits]) => (world: World) => {
      world.ofOwner.set(ownerId, capacity(...limits));
      world.review();
      world.queue.capacityFreed();
    }),
  },
  {
    weight: 1,
    arbitrary: fc
      .tuple(fc.integer({ min: 1, max: 5 }), fc.integer({ min: 4, max: 10 }), fc.integer({ min: 4, max: 10 }))
      .map((limits) => (world: World) => {
        world.all = capacity(...limits);
        world.review();
        world.queue.capacityFreed();
      }),
  },
  {
    weight: 1,
    arbitrary: fc.constantFrom(10_000, 30_000).map((ms) => (world: World) => world.clock.advance(ms)),
  },
  { weight: 3, arbitrary: fc.constant(settle) },
);

it("nobody waits who could be served, whatever comes and goes", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 40, size: "max" }), count(4), async (steps, turns) => {
      const world = new World(turns);
      for (const apply of [...steps, settle, settle]) {
        await apply(world);
        if (apply !== settle) continue;
        world.turn++;
        await settle();
        expect(world.stuck()).toEqual([]);
        expect(world.doomed()).toEqual([]);
      }
      world.queue.close();
      await settle();
    }),
    { numRuns: 1_000, interruptAfterTimeLimit: 15_000 },
  );
}, 60_000);
