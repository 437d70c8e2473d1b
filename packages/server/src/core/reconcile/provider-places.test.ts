import { expect, it, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { forever, Harness } from "../testing/harness.ts";
import { ScriptedBackend, ScriptedProvider, type StepHook } from "../testing/scripted-provider.ts";
import { ProviderPlaces } from "./provider-places.ts";
import { backend, clock, end, livesPerTest, open, state, store } from "./testing/lives.ts";

livesPerTest();

/** A life whose provider asks `place`, which has what `at` runs. */
function lifeAt(place: string, at: ScriptedBackend, hook: StepHook = () => undefined): Harness {
  const h = new Harness({ store, clock, provider: new ScriptedProvider({ backend: at, place, hook }) });
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
  expect(await second.service.get(kept.id)).toMatchObject({
    state: "unhealthy",
    error: expect.stringMatching(/made at another backend or account/),
  });
  await expect(second.service.destroy(kept.id, { signal: forever })).rejects.toThrow(
    /made at another backend or account/,
  );
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

it("each start at another place says in the log where sandboxes were made, also of a place that says nothing", async () => {
  const first = await lifeAt("one", backend).start();
  await first.spawn();
  await end(first);
  const said = vi.spyOn(silentLogger, "warn");
  const told = () => said.mock.calls.splice(0).map(([fields]) => fields as unknown);
  const silent: StepHook = (step) => {
    if (step === "inventory") throw new Error("it begins");
  };
  const account = new ScriptedBackend();
  for (const hook of [silent, undefined, undefined]) {
    const next = await lifeAt("two", account, hook).start();
    await clock.advance(60_000);
    await end(next);
    expect(told()).toContainEqual({ provider: "scripted", made_at: "one", asked_at: "two", sandboxes: 1 });
  }
  await end(await lifeAt("one", backend).start());
  expect(told()).not.toContainEqual(expect.objectContaining({ made_at: expect.anything() }));
  said.mockRestore();
});

it("what is made at another place before that one says what it has does not show it to be the former, or to have what was made there", async () => {
  const first = await lifeAt("one", backend).start();
  const [kept, asked] = [await first.spawn(), await first.spawn()];
  await end(first);
  await clock.advance(1_000);
  const account = new ScriptedBackend();
  const silent: StepHook = (step) => {
    if (step === "inventory") throw new Error("it begins");
  };
  const second = await lifeAt("two", account, silent).start();
  await expect(second.service.destroy(asked.id, { signal: forever })).rejects.toThrow(
    /made at another backend or account/,
  );
  const lost = await second.spawn();
  await end(second);
  const third = await lifeAt("two", account, silent).start();
  const made = await third.spawn();
  third.provider.hook = () => undefined;
  await clock.advance(60_000);
  expect(await state(kept.id)).toBe("unhealthy");
  for (const { id } of [lost, made]) expect(third.service.running(id).row.state).toBe("running");
  await end(third);
  expect([...backend.runtimes.values()].map((runtime) => runtime.state)).toEqual(["running", "running"]);
  const back = await lifeAt("one", backend).start();
  expect(back.service.running(kept.id).row.state).toBe("running");
  await clock.advance(60_000);
  expect(await state(made.id)).not.toBe("error");
});

it("nothing is made at another place before that is written down", async () => {
  const first = await lifeAt("one", backend).start();
  const kept = await first.spawn();
  await end(first);
  await clock.advance(1_000);
  const account = new ScriptedBackend();
  const full = vi.spyOn(store, "changeSetting").mockRejectedValue(new Error("the disk is full"));
  const second = lifeAt("two", account, (step) => {
    if (step === "inventory") throw new Error("it begins");
  });
  second.reconciler.start();
  const spawned = second.spawn();
  await clock.advance(2_000);
  full.mockRestore();
  await clock.advance(2_000);
  await spawned;
  await end(second);
  await lifeAt("two", account).start();
  await clock.advance(60_000);
  expect(await state(kept.id)).toBe("unhealthy");
});

it("while it is not written down where a provider is now, what was made elsewhere is not ended there", async () => {
  const first = await lifeAt("one", backend).start();
  const kept = await first.spawn();
  await end(first);
  const full = vi.spyOn(store, "changeSetting").mockRejectedValue(new Error("busy"));
  const second = lifeAt("two", new ScriptedBackend());
  second.reconciler.start();
  await clock.advance(100);
  await expect(second.service.destroy(kept.id, { signal: forever })).rejects.toThrow(
    /made at another backend or account/,
  );
  expect(await state(kept.id)).not.toBe("destroyed");
  full.mockRestore();
});

it("the same backend under another name that is slow to say what it has keeps it", async () => {
  const first = await lifeAt("one", backend).start();
  const kept = await first.spawn();
  await end(first);
  const second = await lifeAt("renamed", backend, () => {
    throw new Error("it begins");
  }).start();
  await end(second);
  const third = await lifeAt("renamed", backend).start();
  expect(third.service.running(kept.id).row.state).toBe("running");
  backend.runtimes.delete(kept.runtimeId);
  await clock.advance(60_000);
  expect(await state(kept.id)).toBe("error");
});

it("what a restore left behind is nowhere, whatever place is asked", async () => {
  const first = await lifeAt("one", backend).start();
  const kept = await first.spawn();
  await end(first);
  await store.changeSetting("restored_at", clock.now().toISOString());
  await lifeAt("two", new ScriptedBackend()).start();
  await clock.advance(60_000);
  expect(await state(kept.id)).toBe("error");
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
