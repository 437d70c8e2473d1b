import { expect, test } from "vitest";
import { FakeClock } from "../core/testing/fake-clock.ts";
import { DescriptorWatch, descriptorLimit, tooFewDescriptors } from "./descriptors.ts";
import type { Logger } from "./logger.ts";

test("the lack of descriptors is told once a minute, and no other failure is", async () => {
  const clock = new FakeClock();
  const told: unknown[] = [];
  let code: string | undefined;
  const logger = { warn: (fields: unknown) => told.push(fields) } as unknown as Logger;
  const tryOpen = async () => {
    if (code !== undefined) throw Object.assign(new Error(code), { code });
  };
  const watch = new DescriptorWatch({ logger, clock, tryOpen });
  await clock.advance(60_000);
  code = "EACCES";
  await clock.advance(60_000);
  expect(told).toEqual([]);
  code = "EMFILE";
  await clock.advance(59_000);
  expect(told).toEqual([{ code: "EMFILE" }]);
  await clock.advance(60_000);
  expect(told).toHaveLength(2);
  code = undefined;
  await clock.advance(120_000);
  expect(told).toHaveLength(2);
  watch[Symbol.dispose]();
  expect(clock.armed).toBe(0);
});

test("connections that can never be there are told with the limit in their way", async () => {
  expect(tooFewDescriptors({ limit: 1_024, maxConnections: 10_000 })).toContain("no more than 1024");
  expect(tooFewDescriptors({ limit: 10_000, maxConnections: 10_000 })).toBeUndefined();
  expect(tooFewDescriptors({ limit: 1_024, maxConnections: 0 })).toBeUndefined();
  expect(await descriptorLimit()).toBeGreaterThan(0);
});
