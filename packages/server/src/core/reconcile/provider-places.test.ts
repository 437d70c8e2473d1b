import { expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { forever, Harness } from "../testing/harness.ts";
import { ScriptedBackend, ScriptedProvider } from "../testing/scripted-provider.ts";
import { ProviderPlaces } from "./provider-places.ts";
import { backend, clock, end, livesPerTest, open, state, store } from "./testing/lives.ts";

livesPerTest();

/** A life whose provider asks `place`, which has what `at` runs. */
function lifeAt(place: string, at: ScriptedBackend): Harness {
  const h = new Harness({ store, clock, provider: new ScriptedProvider({ backend: at, place }) });
  open.push(h);
  return h;
}

it("what another account does not list is unhealthy and not ended, new ones are made there, and the way back finds the old", async () => {
  const first = await lifeAt("one", backend).start();
  const kept = await first.spawn();
  await end(first);
  const account = new ScriptedBackend();
  const second = await lifeAt("two", account).start();
  await clock.advance(60_000);
  expect(await second.service.get(kept.id)).toMatchObject({ state: "unhealthy" });
  await expect(second.service.destroy(kept.id, { signal: forever })).rejects.toThrow(/made at one, and two/);
  const made = await second.spawn();
  await end(second);
  // Once more: nothing of it is in memory.
  const third = await lifeAt("two", account).start();
  expect(third.service.running(made.id).row.state).toBe("running");
  await clock.advance(60_000);
  expect(await state(kept.id)).not.toBe("destroyed");
  await end(third);
  expect(backend.runtimes.get(kept.runtimeId)?.state).toBe("running");
  expect(account.runtimes.get(made.runtimeId)?.state).toBe("running");
});

it("a sandbox goes on where its provider is again", async () => {
  const first = await lifeAt("one", backend).start();
  const kept = await first.spawn();
  await end(first);
  await end(await lifeAt("two", new ScriptedBackend()).start());
  const third = await lifeAt("one", backend).start();
  expect(third.service.running(kept.id).row.state).toBe("running");
});

it("is over when it has ended itself, wherever it was", async () => {
  const first = await lifeAt("one", backend).start();
  const kept = await first.spawn();
  await end(first);
  await lifeAt("two", new ScriptedBackend()).start();
  await clock.advance(31 * 60_000);
  expect(await state(kept.id)).not.toBe("destroyed");
  await clock.advance(10 * 60_000);
  expect(await state(kept.id)).toBe("destroyed");
});

it("the same backend under another name is known by what it has, and what ended there has ended", async () => {
  const first = await lifeAt("one", backend).start();
  const [kept, gone] = [await first.spawn(), await first.spawn()];
  await end(first);
  backend.runtimes.delete(gone.runtimeId);
  const second = await lifeAt("renamed", backend).start();
  expect(second.service.running(kept.id).row.state).toBe("running");
  expect(await state(gone.id)).toBe("error");
});

it("what ended at its own place has ended, whatever was asked in between", async () => {
  const first = await lifeAt("one", backend).start();
  const gone = await first.spawn();
  await end(first);
  await end(await lifeAt("two", new ScriptedBackend()).start());
  backend.runtimes.delete(gone.runtimeId);
  await lifeAt("one", backend).start();
  expect(await state(gone.id)).toBe("error");
});

it("a provider that says no place, or one with an unreadable past, has nothing elsewhere", async () => {
  const rows = [
    { row: (await (await lifeAt("one", backend).start()).spawn()) as never, runtimeId: "rt" as never },
  ];
  const places = (text: string | undefined) =>
    new ProviderPlaces({
      store: { setting: async () => text, changeSetting: async () => undefined },
      logger: silentLogger,
      now: () => clock.now(),
    });
  const none = { has: () => false };
  expect((await places(undefined).away({ name: "x" }, rows, none)).size).toBe(0);
  for (const text of [undefined, "", "{}", '[{"place":1}]'])
    expect((await places(text).away({ name: "x", place: "one" }, rows, none)).size).toBe(0);
});
