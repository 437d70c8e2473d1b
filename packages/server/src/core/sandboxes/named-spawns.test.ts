import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { FakeClock } from "../testing/fake-clock.ts";
import { forever } from "../testing/harness.ts";
import { NamedSpawns } from "./named-spawns.ts";

test("of those who wait for spawns of many names that end at once, some look again in a turn", async () => {
  const named = new NamedSpawns({ clock: new FakeClock() });
  const begin = Promise.withResolvers<string>();
  const outcomes: (string | undefined)[] = [];
  const all = Array.from({ length: 400 }, (_, index) =>
    named
      .spawn({ ownerId: "ann", name: `n-${index % 20}` }, { signal: forever, spawn: () => begin.promise })
      .then((made) => outcomes.push(made)),
  );
  await setImmediate();
  begin.resolve("made");
  await setImmediate();
  expect(outcomes.length).toBeLessThanOrEqual(20 + 2 * 64);
  await Promise.all(all);
  expect(outcomes.filter((made) => made === "made")).toHaveLength(20);
  expect(outcomes.filter((made) => made === undefined)).toHaveLength(380);
});
