import { expect, it } from "vitest";
import { CallerGone, DeadlineExceeded, ShuttingDown } from "../../platform/deadline.ts";
import { Conflict, NotFound, ProviderError, ResourceLimit, Unavailable } from "../../ports/errors.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { OperationMetrics, operations } from "./operation-metrics.ts";

function make() {
  const clock = new FakeClock();
  const metrics = new OperationMetrics({ clock, providers: ["one", "two"] });
  const of = (operation: string) =>
    metrics.all.find((figures) => figures.operation === operation && figures.provider === "one");
  return { clock, metrics, of };
}

it("has every operation of every provider from the start", () => {
  const { all } = make().metrics;
  expect(all).toHaveLength(operations.length * 2);
  for (const figures of all)
    expect(figures).toMatchObject({ succeeded: 0, failed: 0, shortestMs: 0, longestMs: 0 });
});

it("counts what was done, with how long it took", async () => {
  const { clock, metrics, of } = make();
  for (const ms of [30, 10, 200])
    await metrics.measure("file_read", "one", async () => void (await clock.advance(ms)));
  expect(of("file_read")).toMatchObject({ succeeded: 3, failed: 0, shortestMs: 10, longestMs: 200 });
  const { latencies } = of("file_read") ?? {};
  expect([latencies?.count, latencies?.sum]).toEqual([3, 240]);
  expect(latencies?.upTo().filter(({ count }) => count === 2)).toEqual([
    { bound: 50, count: 2 },
    { bound: 100, count: 2 },
  ]);
  expect(of("file_write")).toMatchObject({ succeeded: 0 });
});

it.each<[string, Error, number]>([
  ["a backend that refuses", new ProviderError("no"), 1],
  ["a sandbox that is not reached", new Unavailable("no"), 1],
  ["a deadline of ours", new DeadlineExceeded(1), 1],
  ["something unforeseen", new TypeError("no"), 1],
  ["what does not exist", new NotFound("no"), 0],
  ["a conflict", new Conflict("no"), 0],
  ["a limit", new ResourceLimit("no"), 0],
  ["a caller that left", new CallerGone(), 0],
  ["a stop of the service", new ShuttingDown(), 0],
])("counts as a failure of the provider or not: %s", async (_what, error, failed) => {
  const { metrics, of } = make();
  await expect(metrics.measure("file_stat", "one", () => Promise.reject(error))).rejects.toBe(error);
  expect(of("file_stat")).toMatchObject({ succeeded: 0, failed });
  expect(of("file_stat")?.latencies.count).toBe(failed);
});

it("counts nothing that its caller broke off", async () => {
  const { metrics, of } = make();
  const task = () => Promise.reject(new Unavailable("cut"));
  await expect(metrics.measure("file_write", "one", task, AbortSignal.abort())).rejects.toThrow("cut");
  expect(of("file_write")).toMatchObject({ succeeded: 0, failed: 0 });
});
