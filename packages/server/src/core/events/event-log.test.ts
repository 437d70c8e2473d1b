import { setImmediate } from "node:timers/promises";
import type { Event } from "@alcove/wire";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import type { Store } from "../../ports/index.ts";
import type { EventPage } from "../../ports/store.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { Harness } from "../testing/harness.ts";
import { EventLog } from "./event-log.ts";
import { longestStallMs } from "./event-subscription.ts";
import { mostReaders, mostReadersOfOne } from "./reader-places.ts";

let store: SqliteStore;
let clock: FakeClock;
let log: EventLog;
let reader: AbortController;

const open = (over: Store = store, retention = 10_000) =>
  EventLog.open({ store: over, clock, logger: silentLogger, retention });
const of = (principal: string, owner = "") => ({ principal, owner });
const emit = (count: number, sandboxId = "sb-a", ownerId = "") => {
  for (let i = 0; i < count; i++) log.emit({ type: "exec.started", sandboxId, ownerId });
};

/** Reads in the background. */
function collect(events: AsyncIterable<Event>) {
  const seen: number[] = [];
  const ended = (async () => {
    for await (const event of events) seen.push(Number(event.id));
  })();
  return { seen, ended };
}

beforeEach(async () => {
  store = await SqliteStore.open({ path: ":memory:" });
  clock = new FakeClock();
  log = await open();
  reader = new AbortController();
});
afterEach(async () => {
  reader.abort();
  await log[Symbol.asyncDispose]();
  expect(log.subscribers).toBe(0);
  expect(clock.armed).toBe(0);
  await store[Symbol.asyncDispose]();
});

describe("EventLog", () => {
  it("writes events together, off the caller's path, with increasing ids that go on after a restart", async () => {
    emit(3);
    expect(await store.events.lastId()).toBe(0);
    await clock.advance(20);
    expect(await store.events.lastId()).toBe(3);
    emit(1);
    await log[Symbol.asyncDispose]();
    log = await open();
    emit(1);
    await log.flush();
    expect((await store.events.list({ afterId: 3, limit: 9 })).events.map(({ id }) => id)).toEqual([
      "4",
      "5",
    ]);
  });

  it("tells what a sandbox was and a killed process had no time to tell, once and at its time", async () => {
    await using h = await new Harness({ store, clock }).start();
    const { id } = await h.spawn({ ownerId: "bob" });
    await clock.advance(5);
    await h.service.destroy(id, { signal: reader.signal });
    const told = h.events.events.filter(({ type }) => type.startsWith("sandbox."));
    expect(told.map(({ type }) => type)).toEqual(["sandbox.created", "sandbox.running", "sandbox.destroyed"]);
    // The process was killed before the log wrote anything.
    await log[Symbol.asyncDispose]();
    log = await open();
    const { seen } = collect(log.subscribe({ ownerId: "bob", afterId: 0, signal: reader.signal }));
    await clock.advance(20);
    await log[Symbol.asyncDispose]();
    log = await open();
    emit(1);
    await log.flush();
    const { events } = await store.events.list({ afterId: 0, limit: 10 });
    expect(
      events.slice(0, 3).map(({ type, sandbox_id, data }) => ({ type, sandboxId: sandbox_id, data })),
    ).toEqual(told.map(({ type, sandboxId, data }) => ({ type, sandboxId, data })));
    expect(Date.parse(events[2]?.timestamp ?? "") - Date.parse(events[1]?.timestamp ?? "")).toBe(5);
    expect(events).toHaveLength(4);
    expect(seen).toEqual([1, 2, 3]);
  });

  it("follows from now on without an id, and hands out only what is durable", async () => {
    emit(2);
    const { seen } = collect(log.subscribe({ signal: reader.signal }));
    emit(2);
    await settle();
    expect(seen).toEqual([]);
    await clock.advance(20);
    expect(seen).toEqual([3, 4]);
  });

  it("replays after an id, then follows, without a gap or a repetition", async () => {
    emit(1_200);
    await log.flush();
    const { seen } = collect(log.subscribe({ afterId: 100, signal: reader.signal }));
    emit(300);
    await log.flush();
    await vi.waitFor(() => expect(seen).toHaveLength(1_400));
    expect(seen).toEqual(Array.from({ length: 1_400 }, (_, i) => 101 + i));
  });

  it("gives others a turn of the event loop after every hundred events of a replay", async () => {
    emit(1_000);
    await log.flush();
    const { seen } = collect(log.subscribe({ afterId: 0, signal: reader.signal }));
    let most = 0;
    while (seen.length < 1_000) {
      const before = seen.length;
      await setImmediate();
      most = Math.max(most, seen.length - before);
    }
    expect(most).toBeLessThanOrEqual(200);
  });

  it("lets one replay at a time look at a part of the history, and callers in turn", async () => {
    emit(10_000, "sb-a", "bob");
    await log.flush();
    const list = store.events.list.bind(store.events);
    const looks: (string | undefined)[] = [];
    vi.spyOn(store.events, "list").mockImplementation((filter) => {
      looks.push(filter.sandboxId);
      return list(filter);
    });
    const replay = (principal: string, owner = "") =>
      collect(
        log.subscribe({
          afterId: 0,
          ownerId: "bob",
          sandboxId: principal,
          caller: of(principal, owner),
          signal: reader.signal,
        }),
      );
    // Whatever owners she names.
    for (let i = 0; i < 8; i++) replay("alice", `owner ${i}`);
    await settle();
    looks.length = 0;
    replay("carol");
    let most = 0;
    while (looks.filter((caller) => caller === "carol").length < 20) {
      const before = looks.length;
      await setImmediate();
      most = Math.max(most, looks.length - before);
    }
    // Twenty parts of 500 events: nobody looks at more than one of them in a turn, however little it finds there.
    expect(most).toBe(1);
    expect(looks.filter((caller) => caller === "alice").length).toBeLessThanOrEqual(22);
  });

  it("replays all that is kept for an id too old, and ignores one it never gave", async () => {
    await log[Symbol.asyncDispose]();
    log = await open(store, 100);
    emit(1_000);
    await log.flush();
    const old = collect(log.subscribe({ afterId: 0, signal: reader.signal }));
    const kept = collect(log.subscribe({ afterId: 900, signal: reader.signal }));
    const unknown = collect(log.subscribe({ afterId: 99_999, signal: reader.signal }));
    await settle();
    expect(old.seen).toEqual(Array.from({ length: 100 }, (_, i) => 901 + i));
    expect(kept.seen).toEqual(old.seen);
    emit(1);
    await log.flush();
    await settle();
    expect(unknown.seen).toEqual([1_001]);
  });

  it("tells a reader of everything that comes back how many are kept no more, where the last of them is missing", async () => {
    await log[Symbol.asyncDispose]();
    log = await open(store, 100);
    emit(1, "sb-a", "gentle");
    emit(998, "sb-b", "noisy");
    emit(1, "sb-a", "gentle");
    await log.flush();
    const kept = (await store.events.list({ afterId: 0, limit: 1_000 })).events.map(({ id }) => Number(id));
    const missing = (afterId: number) => 1_000 - afterId - kept.filter((id) => id > afterId).length;
    const read = (filter: { afterId: number; ownerId?: string }) => {
      const seen: Event[] = [];
      void (async () => {
        for await (const event of log.subscribe({ ...filter, signal: reader.signal })) seen.push(event);
      })();
      return seen;
    };
    const all = read({ afterId: 0 });
    const late = read({ afterId: 300 });
    const gentle = read({ afterId: 1, ownerId: "gentle" });
    await settle();
    expect(all.map(({ id }) => Number(id))).toEqual(kept);
    expect(missing(300)).toBeGreaterThan(500);
    const dropped = late.filter(({ type }) => type === "events.dropped");
    expect(dropped.map(({ data }) => data?.dropped)).toEqual([missing(300)]);
    expect(late.filter((event) => !dropped.includes(event)).map(({ id }) => Number(id))).toEqual(
      kept.filter((id) => id > 300),
    );
    const ids = late.map(({ id }) => Number(id));
    expect(ids).toEqual([...new Set(ids)].sort((a, b) => a - b));
    expect(gentle.map(({ id, type }) => [id, type])).toEqual([["1000", "exec.started"]]);
  });

  it("tells a reader of one owner, type or sandbox that comes back that some may be kept no more, once and at most how many", async () => {
    await log[Symbol.asyncDispose]();
    log = await open(store, 100);
    emit(1, "sb-a", "gentle");
    emit(998, "sb-b", "noisy");
    emit(1, "sb-a", "gentle");
    await log.flush();
    const kept = async (ownerId: string) =>
      (await store.events.list({ afterId: 0, limit: 1_000, ownerId })).events.map(({ id }) => Number(id));
    const oldest = (await kept("noisy"))[0] ?? 0;
    const read = (filter: Omit<Parameters<EventLog["subscribe"]>[0], "signal">) => {
      const seen: Event[] = [];
      void (async () => {
        for await (const event of log.subscribe({ ...filter, signal: reader.signal })) seen.push(event);
      })();
      return seen;
    };
    const noisy = read({ afterId: 300, ownerId: "noisy" });
    const earliest = read({ afterId: 1, ownerId: "noisy" });
    const again = read({ afterId: oldest - 1, ownerId: "noisy" });
    const fromTheBeginning = read({ afterId: 0, ownerId: "noisy" });
    const gentle = read({ afterId: 1, ownerId: "gentle" });
    const other = read({ afterId: 1, ownerId: "nobody" });
    const bySandbox = read({ afterId: 300, sandboxId: "sb-b" });
    const byType = read({ afterId: 300, types: ["sandbox.created"] });
    const all = [noisy, earliest, again, fromTheBeginning, gentle, bySandbox, byType];
    await vi.waitFor(() => expect(all.every((seen) => seen.length > 0)).toBe(true), 10_000);
    await settle();
    const told = (dropped: number) => ({
      id: String(oldest - 1),
      type: "events.dropped",
      sandbox_id: "",
      data: { dropped, at_most: true },
    });
    const ids = (events: readonly Event[]) => events.map(({ id }) => Number(id));
    expect(noisy[0]).toMatchObject(told(oldest - 1 - 300));
    expect(earliest[0]).toMatchObject(told(998 - (await kept("noisy")).length));
    for (const seen of [noisy, earliest, bySandbox]) {
      expect(ids(seen.slice(1))).toEqual(await kept("noisy"));
      expect(seen.filter(({ type }) => type === "events.dropped")).toHaveLength(1);
    }
    for (const seen of [again, fromTheBeginning]) expect(ids(seen)).toEqual(await kept("noisy"));
    expect(ids(gentle)).toEqual([1_000]);
    expect(other).toEqual([]);
    expect(bySandbox[0]).toMatchObject(told(oldest - 1 - 300));
    expect(byType).toMatchObject([told(oldest - 1 - 300)]);
  });

  it("gives no id again that a store gave which is gone, and tells who comes back of the gap", async () => {
    await log[Symbol.asyncDispose]();
    const marks = {
      givenUpto: 0,
      marked: [] as number[],
      mark: async (upto: number) => {
        expect(await store.events.lastId()).toBeLessThan(upto);
        marks.marked.push(upto);
      },
    };
    const reopen = () => EventLog.open({ store, clock, logger: silentLogger, retention: 10_000, marks });
    log = await reopen();
    emit(3, "sb-a", "ann");
    await log.flush();
    emit(1);
    await log.flush();
    // Ahead, so that not every batch takes a mark.
    expect(marks.marked).toEqual([10_003]);
    await clock.advance(10_000);
    emit(1);
    await log.flush();
    expect(marks.marked).toEqual([10_003, 10_005]);
    await log[Symbol.asyncDispose]();
    marks.givenUpto = 10_005;
    log = await reopen();
    emit(2, "sb-a", "ann");
    await log.flush();
    const read = (filter: Partial<Parameters<EventLog["subscribe"]>[0]>) => {
      const seen: Event[] = [];
      void (async () => {
        for await (const event of log.subscribe({ ...filter, signal: reader.signal })) seen.push(event);
      })();
      return seen;
    };
    const [all, owned, other, begins] = [
      read({ afterId: 9 }),
      read({ afterId: 9, ownerId: "ann" }),
      read({ afterId: 9, ownerId: "nobody" }),
      read({ afterId: 0 }),
    ];
    await settle();
    const told = { id: "10005", type: "events.dropped", data: { dropped: 9_996, at_most: true } };
    expect(all).toMatchObject([told, { id: "10006" }, { id: "10007" }]);
    expect(owned).toMatchObject([told, { id: "10006" }, { id: "10007" }]);
    expect(other).toMatchObject([told]);
    expect(begins.map(({ id }) => id)).toEqual(["1", "2", "3", "4", "5", "10006", "10007"]);
  });

  it("tells what is forgotten while it replays, in its place, and hands out what came since", async () => {
    emit(250, "sb-a", "noisy");
    emit(1, "sb-b", "gentle");
    await log.flush();
    const events = log
      .subscribe({ afterId: 10, ownerId: "noisy", signal: reader.signal })
      .pieces()
      [Symbol.asyncIterator]();
    const next = async () => ((await events.next()).value ?? []) as readonly Event[];
    expect((await next()).map(({ id }) => Number(id))).toEqual(Array.from({ length: 100 }, (_, i) => 11 + i));
    emit(60, "sb-a", "noisy");
    await log.flush();
    await store.events.trim(51);
    const kept = (await store.events.list({ afterId: 0, limit: 1_000, ownerId: "noisy" })).events;
    expect(kept.map(({ id }) => Number(id))).toEqual(Array.from({ length: 50 }, (_, i) => 262 + i));
    const told = await next();
    expect(told).toMatchObject([
      { id: "251", type: "events.dropped", data: { dropped: 241, at_most: true } },
    ]);
    expect((await next()).map(({ id }) => Number(id))).toEqual(Array.from({ length: 60 }, (_, i) => 252 + i));
  });

  it("filters by type and sandbox, in the replay and live", async () => {
    emit(1, "sb-a");
    emit(1, "sb-b");
    log.emit({ type: "sandbox.created", sandboxId: "sb-b", ownerId: "" });
    await log.flush();
    const filter = { types: ["exec.started"] as const, sandboxId: "sb-b", afterId: 0, signal: reader.signal };
    const { seen } = collect(log.subscribe(filter));
    emit(1, "sb-a");
    emit(1, "sb-b");
    await log.flush();
    await settle();
    expect(seen).toEqual([2, 5]);
  });

  it("tells a reader that falls behind how many it missed, in their place, and goes on; others miss nothing", async () => {
    const slow = log.subscribe({ types: ["exec.started"], signal: reader.signal })[Symbol.asyncIterator]();
    const { seen } = collect(log.subscribe({ signal: reader.signal }));
    const first = slow.next();
    for (let i = 0; i < 4; i++) {
      emit(500);
      await log.flush();
      await settle();
    }
    expect(await first).toMatchObject({ done: false, value: { id: "1" } });
    const taken: Event[] = [];
    const take = async () => {
      const next = await slow.next();
      if (next.done === true) throw new Error("the reader was cut off");
      taken.push(next.value);
    };
    do await take();
    while (taken.at(-1)?.id !== "2000");
    const told = taken.at(-1);
    const dropped = 2_000 - 1 - (taken.length - 1);
    expect(told).toMatchObject({ type: "events.dropped", sandbox_id: "", data: { dropped } });
    expect(taken.slice(0, -1).map(({ id }) => Number(id))).toEqual(
      Array.from({ length: taken.length - 1 }, (_, i) => i + 2),
    );
    expect(dropped).toBeGreaterThan(0);
    expect(dropped).toBe(2_000 - Number(taken.at(-2)?.id));
    emit(1);
    await log.flush();
    await take();
    expect(taken.at(-1)).toMatchObject({ id: "2001", type: "exec.started" });
    expect(seen).toHaveLength(2_001);
  });

  it("cuts off a reader that takes nothing for long while it misses events", async () => {
    let cuts = 0;
    const onCut = () => cuts++;
    const stalled = log.subscribe({ signal: reader.signal, onCut })[Symbol.asyncIterator]();
    const first = stalled.next();
    for (let i = 0; i < 5; i++) {
      emit(500);
      await log.flush();
      await settle();
    }
    await first;
    expect(cuts).toBe(0);
    await clock.advance(longestStallMs);
    emit(1);
    await log.flush();
    expect([cuts, log.subscribers]).toEqual([1, 0]);
    while ((await stalled.next()).done !== true);
  });

  it("offers many readers what comes in bounded parts of a turn, to each in order and without a gap", async () => {
    const readers = 300;
    const events = 500;
    let given = 0;
    const seen: number[][] = [];
    for (let n = 0; n < readers; n++) {
      const own: number[] = [];
      seen.push(own);
      void (async () => {
        for await (const piece of log.subscribe({ caller: of(`${n}`), signal: reader.signal }).pieces()) {
          given += piece.length;
          own.push(...piece.map(({ id }) => Number(id)));
        }
      })();
    }
    emit(events);
    await log.flush();
    // While these are handed out others come, and a reader that wants none of either.
    emit(events);
    await log.flush();
    const late = collect(log.subscribe({ signal: reader.signal }));
    let most = 0;
    while (given < readers * 2 * events) {
      const before = given;
      await setImmediate();
      most = Math.max(most, given - before);
    }
    // What is offered in a turn, a batch that goes beyond it, and that another turn may come in between.
    expect(most).toBeLessThanOrEqual((2 * (2 * readers * events)) / 32 + 2 * events);
    const all = Array.from({ length: 2 * events }, (_, i) => i + 1);
    for (const own of seen) expect(own).toEqual(all);
    emit(1);
    await log.flush();
    await settle();
    expect(late.seen).toEqual([2 * events + 1]);
  });

  it("hands every reader the same events, many at once", async () => {
    const pieces: (readonly Event[])[][] = [[], []];
    for (const own of pieces)
      void (async () => {
        for await (const piece of log.subscribe({ signal: reader.signal }).pieces()) own.push(piece);
      })();
    emit(150);
    await log.flush();
    await settle();
    const [one, other] = pieces.map((own) => own.flat());
    expect(pieces[0]?.map(({ length }) => length)).toEqual([100, 50]);
    for (const [index, event] of (one ?? []).entries()) expect(other?.[index]).toBe(event);
  });

  describe("with many readers", () => {
    const cut: string[] = [];
    const ended: Promise<void>[] = [];
    beforeEach(() => {
      cut.length = 0;
      ended.length = 0;
    });
    const enter = (principal: string, owner = "", signal = reader.signal) => {
      const onCut = () => cut.push(`${principal} ${owner}`.trim());
      ended.push(collect(log.subscribe({ caller: of(principal, owner), signal, onCut })).ended);
    };
    const many = (count: number, principal: string, owner = "") => {
      for (let n = 0; n < count; n++) enter(principal, owner);
    };

    it("takes a bounded number of one key, whatever owners it names, and of all", () => {
      const leaving = new AbortController();
      enter("ada", "", leaving.signal);
      many(mostReadersOfOne - 1, "ada");
      expect(() => enter("ada")).toThrow(expect.objectContaining({ code: "resource_limit" }));
      enter("bob");
      leaving.abort();
      enter("ada");
      for (let n = 0; n < 5; n++) many(100, "key", `owner ${n}`);
      for (let n = 0; n < 5; n++)
        expect(() => enter("key", `owner ${n}`)).toThrow(expect.objectContaining({ code: "resource_limit" }));
      for (let n = log.subscribers; n < mostReaders; n++) enter(`other ${n}`);
      expect(log.subscribers).toBe(mostReaders);
      expect(cut).toEqual([]);
    });

    it("ends the newest reader of whom has most for one who has fewer, who then is as many", async () => {
      for (const key of ["ada", "bob", "cid", "dan"]) many(mostReadersOfOne, key);
      enter("admin");
      await ended[mostReadersOfOne - 1];
      expect(cut).toEqual(["ada"]);
      expect([log.subscribers, ended.length]).toEqual([mostReaders, mostReaders + 1]);
      // It comes back and finds no place: others give way only to who has fewer.
      expect(() => enter("ada")).toThrow(expect.objectContaining({ code: "unavailable" }));
      many(399, "admin");
      expect(cut).toHaveLength(400);
      for (const key of ["ada", "bob", "cid", "dan"])
        expect(cut.filter((one) => one === key)).toHaveLength(100);
      for (const key of ["ada", "bob", "cid", "dan", "admin"])
        expect(() => enter(key)).toThrow(expect.objectContaining({ code: "unavailable" }));
      expect(log.subscribers).toBe(mostReaders);
    });

    it("lets an owner of a key that has all it may have in its largest owner's place", async () => {
      many(mostReadersOfOne - 1, "key", "noisy");
      enter("key", "quiet");
      enter("key", "late");
      await ended[mostReadersOfOne - 2];
      expect(cut).toEqual(["key noisy"]);
      expect(() => enter("key", "noisy")).toThrow(expect.objectContaining({ code: "resource_limit" }));
      expect(log.subscribers).toBe(mostReadersOfOne);
    });

    it("turns nobody out for who would then have more", () => {
      for (let n = 0; n < mostReaders; n++) enter(`key ${n}`);
      expect(() => enter("another")).toThrow(expect.objectContaining({ code: "unavailable" }));
      expect(cut).toEqual([]);
    });
  });

  it("shows an owner what is its own alone, in the replay and live", async () => {
    const tell = () => {
      emit(1, "sb-a", "ada");
      emit(1, "sb-b", "bob");
      emit(1, "sb-c", "");
    };
    tell();
    await log.flush();
    const ada = collect(log.subscribe({ ownerId: "ada", afterId: 0, signal: reader.signal }));
    const bobs = { ownerId: "bob", sandboxId: "sb-a", afterId: 0, signal: reader.signal };
    const bob = collect(log.subscribe(bobs));
    const all = collect(log.subscribe({ afterId: 0, signal: reader.signal }));
    await settle();
    expect(ada.seen).toEqual([1]);
    tell();
    await log.flush();
    await settle();
    expect([ada.seen, bob.seen, all.seen]).toEqual([[1, 4], [], [1, 2, 3, 4, 5, 6]]);
  });

  it("tells who may not know of keys nothing of them, in the replay and live, and of no gap in their place", async () => {
    const emitBoth = () => {
      log.emit({ type: "key.created", sandboxId: "", ownerId: "" });
      emit(1);
      log.emit({ type: "key.revoked", sandboxId: "", ownerId: "ada" });
    };
    // More than one page of a replay has.
    for (let i = 0; i < 60; i++) emitBoth();
    for (let i = 0; i < 150; i++) log.emit({ type: "key.created", sandboxId: "", ownerId: "" });
    await log.flush();
    const options = { afterId: 1, signal: reader.signal, withoutKeys: true };
    const everything = collect(log.subscribe(options));
    const asked = collect(log.subscribe({ ...options, types: ["key.created", "key.revoked"] }));
    const administrator = collect(log.subscribe({ afterId: 1, signal: reader.signal }));
    await vi.waitFor(() => expect(administrator.seen).toHaveLength(329), { timeout: 10_000 });
    emitBoth();
    await log.flush();
    await vi.waitFor(() => expect(administrator.seen).toHaveLength(332), { timeout: 10_000 });
    await vi.waitFor(() => expect(everything.seen).toHaveLength(61), { timeout: 10_000 });
    expect(everything.seen).toEqual([...Array.from({ length: 60 }, (_, n) => 3 * n + 2), 332]);
    expect(asked.seen).toEqual([]);
  });

  it("ends its readers when their signal aborts and when it closes", async () => {
    const one = collect(log.subscribe({ signal: reader.signal }));
    const two = collect(log.subscribe({ signal: new AbortController().signal }));
    await settle();
    expect(log.subscribers).toBe(2);
    reader.abort();
    await one.ended;
    expect(log.subscribers).toBe(1);
    emit(1);
    await log[Symbol.asyncDispose]();
    await two.ended;
    expect(await store.events.lastId()).toBe(1);
  });

  it("keeps events while the store fails, drops what is beyond its bound, and goes on", async () => {
    let failing = true;
    const events = new Proxy(store.events, {
      get: (target, property) =>
        property === "append" && failing
          ? async () => {
              throw new Error("disk full");
            }
          : Reflect.get(target, property).bind(target),
    });
    const over: Store = {
      sandboxes: store.sandboxes,
      idempotency: store.idempotency,
      quotas: store.quotas,
      templates: store.templates,
      audit: store.audit,
      keys: store.keys,
      events,
      instanceId: async (c) => c,
      setting: async () => undefined,
      changeSetting: async () => undefined,
      commits: store.commits,
      ping: async () => undefined,
      [Symbol.asyncDispose]: async () => undefined,
    };
    await log[Symbol.asyncDispose]();
    log = await open(over);
    emit(10_050);
    await expect(log.flush()).rejects.toThrow(/could not be written/);
    failing = false;
    await clock.advance(2_000);
    await log.flush();
    let kept = 0;
    for (let afterId: number | undefined = 0; afterId !== undefined; ) {
      const page: EventPage = await store.events.list({ afterId, limit: 20_000 });
      kept += page.events.length;
      afterId = page.reached;
    }
    expect(kept).toBe(10_000);
  });
});
