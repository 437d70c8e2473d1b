import { expect, test } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import type { EmittedEvent } from "../../ports/index.ts";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { EventLog } from "./event-log.ts";
import { LimitReports } from "./limit-reports.ts";

const refused = (ownerId: string, reason = "max_sandboxes", sandboxId = ""): EmittedEvent => ({
  type: "resource.limit",
  sandboxId,
  ownerId,
  data: { operation: "spawn", reason },
});

test("refusals of a kind are told once a second, the first at once, with how many there were", async () => {
  const clock = new FakeClock();
  const told: EmittedEvent[] = [];
  const counts = () => told.splice(0).map(({ ownerId, data }) => [ownerId, data?.reason, data?.count]);
  const reports = new LimitReports({ clock, emit: (event) => told.push(event) });
  for (let n = 0; n < 1_000; n++) reports.report(refused("noisy"));
  reports.report(refused("gentle"));
  reports.report(refused("noisy", "max_memory_mb"));
  expect(counts()).toEqual([
    ["noisy", "max_sandboxes", undefined],
    ["gentle", "max_sandboxes", undefined],
    ["noisy", "max_memory_mb", undefined],
  ]);
  await clock.advance(1_000);
  expect(counts()).toEqual([["noisy", "max_sandboxes", 999]]);
  reports.report(refused("noisy"));
  expect(counts()).toEqual([]);
  await clock.advance(1_000);
  expect(counts()).toEqual([["noisy", "max_sandboxes", undefined]]);
  await clock.advance(2_000);
  expect(clock.armed).toBe(0);
  reports.report(refused("noisy", "max_ttl", "sb-a"));
  reports.report(refused("noisy", "max_ttl", "sb-b"));
  reports.report(refused("noisy", "max_ttl", "sb-b"));
  reports.report(refused("noisy", "max_ttl", "sb-b"));
  reports[Symbol.dispose]();
  expect(told.map(({ sandboxId, data }) => [sandboxId, data?.count])).toEqual([
    ["sb-a", undefined],
    ["sb-b", undefined],
    ["sb-b", 2],
  ]);
  expect(clock.armed).toBe(0);
});

test("an owner that asks in a loop at its limit leaves others' events in the history", async () => {
  await using store = await SqliteStore.open({ path: ":memory:" });
  const clock = new FakeClock();
  const log = await EventLog.open({ store, clock, logger: silentLogger, retention: 100 });
  log.emit({ type: "sandbox.created", sandboxId: "sb-a", ownerId: "gentle" });
  for (let n = 0; n < 5_000; n++) {
    log.emit(refused("noisy"));
    if (n % 500 === 0) await log.flush();
  }
  await log[Symbol.asyncDispose]();
  const { events } = await store.events.list({ afterId: 0, limit: 1_000 });
  expect(events.map(({ type, data }) => [type, data?.count])).toEqual([
    ["sandbox.created", undefined],
    ["resource.limit", undefined],
    ["resource.limit", 4_999],
  ]);
  expect(clock.armed).toBe(0);
});
