import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { LiveSandboxes } from "./live-sandboxes.ts";

test("of those who wait for work that is done at once some go on in a turn, in the order in which they came", async () => {
  const live = new LiveSandboxes({ logger: silentLogger, clock: new FakeClock() });
  const { promise: done, resolve } = Promise.withResolvers<void>();
  const went: number[] = [];
  const all = Array.from({ length: 400 }, (_, index) =>
    live.finished({ kind: "other", done }).then(() => went.push(index)),
  );
  resolve();
  for (const turn of [1, 2, 3]) {
    await setImmediate();
    expect(went.length).toBeLessThanOrEqual(64 * turn);
  }
  await Promise.all(all);
  expect(went).toEqual(Array.from({ length: 400 }, (_, index) => index));
});
