import { setTimeout } from "node:timers/promises";
import { expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { Unavailable } from "../../ports/index.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { Drain } from "./drain.ts";

/** A store whose first writes take longest. */
function slowSettings() {
  const settings = new Map<string, string>();
  let delayMs = 30;
  return {
    settings,
    setting: async (name: string) => settings.get(name),
    changeSetting: async (name: string, value: string) => {
      delayMs -= 10;
      await setTimeout(delayMs);
      settings.set(name, value);
    },
  };
}

it("what is asked for last counts, however long each takes to write", async () => {
  const store = slowSettings();
  const clock = new FakeClock();
  const drain = await Drain.open({ store, clock, logger: silentLogger });
  await Promise.all([drain.begin(), drain.end()]);
  expect([drain.since, store.settings.get("draining_since")]).toEqual([undefined, ""]);
  drain.admit();
  await Promise.all([drain.end(), drain.begin()]);
  expect(drain.since).toEqual(clock.now());
  expect(() => drain.admit()).toThrow(Unavailable);
  expect((await Drain.open({ store, clock, logger: silentLogger })).since).toEqual(drain.since);
});
