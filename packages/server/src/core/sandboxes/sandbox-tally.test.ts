import { expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import type { SandboxRow } from "../../ports/index.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { type LiveSandbox, LiveSandboxes } from "./live-sandboxes.ts";

const row = (id: string, state: SandboxRow["state"], provider = "one") =>
  ({ id, runtimeId: `rt-${id}`, state, provider, workerId: "local" }) as SandboxRow;

it("counts sandboxes as they come, change and go, without a walk over them", () => {
  const live = new LiveSandboxes({ logger: silentLogger, clock: new FakeClock() });
  const entries = Array.from({ length: 10_000 }, (_, index) =>
    live.add(row(`sb-${index}`, "creating", index % 2 === 0 ? "one" : "two"), undefined),
  );
  live.all = () => {
    throw new Error("somebody walks all sandboxes");
  };
  for (const entry of entries) entry.row = { ...entry.row, state: "running" };
  expect(live.tally.counts).toEqual({
    total: 10_000,
    active: 10_000,
    byState: { running: 10_000 },
    byProvider: { one: 5_000, two: 5_000 },
    byWorker: { local: 10_000 },
    activeByWorker: { local: 10_000 },
  });
  const [first, second, third] = entries as [LiveSandbox, LiveSandbox, LiveSandbox];
  first.row = { ...first.row, state: "expired" };
  live.remove(second);
  live.remove(second);
  expect(live.tally.counts).toMatchObject({
    total: 9_999,
    active: 9_999,
    byState: { running: 9_998, expired: 1 },
    byProvider: { one: 5_000, two: 4_999 },
  });
  third.row = { ...third.row, state: "error" };
  live.leaveToRow(third);
  expect(live.size).toBe(9_998);
  expect(live.tally.counts).toMatchObject({
    total: 9_999,
    active: 9_998,
    byState: { error: 1 },
    byWorker: { local: 9_999 },
    activeByWorker: { local: 9_998 },
  });
  live.remove(live.add(third.row, undefined));
  expect(live.tally.counts).toMatchObject({ total: 9_998, byState: { running: 9_997, expired: 1 } });
});

it("counts no spawn that has no place yet", () => {
  const live = new LiveSandboxes({ logger: silentLogger, clock: new FakeClock() });
  const entry = live.add(row("sb-1", "creating"), undefined);
  const done = Promise.resolve();
  entry.work = { kind: "reserving", done, cancel: () => undefined };
  expect(live.tally.counts.total).toBe(0);
  entry.row = { ...entry.row };
  expect(live.tally.counts.total).toBe(0);
  entry.work = { kind: "spawn", done, cancel: () => undefined };
  expect(live.tally.counts).toMatchObject({ total: 1, byState: { creating: 1 } });
  entry.work = undefined;
  live.remove(entry);
  const none = { byState: {}, byProvider: {}, byWorker: {}, activeByWorker: {} };
  expect(live.tally.counts).toEqual({ total: 0, active: 0, ...none });
});
