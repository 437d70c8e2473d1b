import { afterEach, beforeEach, expect } from "vitest";
import type { SandboxId } from "../../../ports/index.ts";
import { SqliteStore } from "../../../stores/sqlite/index.ts";
import { FakeClock } from "../../testing/fake-clock.ts";
import { Harness } from "../../testing/harness.ts";
import { ScriptedBackend, ScriptedProvider } from "../../testing/scripted-provider.ts";

/** Of the test that runs: `livesPerTest` makes them anew for each. */
export let store: SqliteStore;
export let backend: ScriptedBackend;
export let clock: FakeClock;
export const open: Harness[] = [];

/** A new process on the same store and backend. */
export function life(provider = new ScriptedProvider({ backend })): Harness {
  const made = new Harness({ store, clock, provider });
  open.push(made);
  return made;
}

/** Ends a process without a word to its sandboxes. */
export async function end(h: Harness): Promise<void> {
  open.splice(open.indexOf(h), 1);
  await h[Symbol.asyncDispose]();
}

/** The timers of a process that was killed are nobody's any more. */
export function newClock(): void {
  clock = new FakeClock();
}

export const state = async (id: SandboxId) => (await store.sandboxes.get(id))?.state;

/** Each test has a store, a backend and a clock of its own, and leaves nothing behind. */
export function livesPerTest(): void {
  beforeEach(async () => {
    store = await SqliteStore.open({ path: ":memory:" });
    backend = new ScriptedBackend();
    newClock();
  });
  afterEach(async () => {
    for (const h of [...open]) {
      await end(h);
      expect(h.provider.listeners).toBe(0);
    }
    expect(clock.armed).toBe(0);
    await store[Symbol.asyncDispose]();
  });
}
