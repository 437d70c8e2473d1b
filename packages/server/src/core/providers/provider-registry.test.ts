import { afterEach, describe, expect, it, vi } from "vitest";
import { type CallOptions, NotFound, type ProviderCheck } from "../../ports/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever } from "../testing/harness.ts";
import { ScriptedProvider } from "../testing/scripted-provider.ts";
import { ProviderRegistry } from "./provider-registry.ts";

function make() {
  const clock = new FakeClock();
  const one = new ScriptedProvider({ name: "one" });
  const two = new ScriptedProvider({ name: "two", capabilities: ["spawn"] });
  let checks = 0;
  one.check = async () => {
    checks++;
    return one.checkResult;
  };
  const registry = new ProviderRegistry({ providers: [one, two], defaultName: "two", clock });
  return { clock, one, two, registry, checks: () => checks };
}

/** Deadlines are by real timers; what `settle` uses is left alone. */
const holdDeadlines = () => vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });

afterEach(() => {
  vi.useRealTimers();
});

describe("ProviderRegistry", () => {
  it("gives providers by name, and names the enabled ones for another", () => {
    const { registry, one, two } = make();
    expect(registry.get("one")).toBe(one);
    expect(registry.default()).toBe(two);
    expect(() => registry.get("three")).toThrow(NotFound);
    expect(() => registry.get("three")).toThrow(/enabled: one, two/);
  });

  it("finds the provider of a row by its worker too", () => {
    const { registry, one } = make();
    expect(registry.find({ workerId: "local", provider: "one" })).toBe(one);
    expect(registry.find({ workerId: "local", provider: "three" })).toBeUndefined();
    expect(registry.find({ workerId: "w2", provider: "one" })).toBeUndefined();
  });

  it("looks at a provider as soon as a spawn is refused for want of room, and when one succeeds again", async () => {
    const { registry, clock, one, checks } = make();
    await registry.healthOf("one", { signal: forever });
    registry.spawned("one");
    expect(checks()).toBe(1);
    one.checkResult = { healthy: true, notes: [], cannotSpawn: "12 MB were free" };
    await clock.advance(2_000);
    registry.refusedForRoom("one");
    registry.refusedForRoom("one");
    await settle();
    expect(checks()).toBe(2);
    expect(registry.lastKnown()[0]).toMatchObject({ cannotSpawn: "12 MB were free" });
    one.checkResult = { healthy: true, notes: [] };
    await clock.advance(2_000);
    registry.refusedForRoom("one");
    expect(checks()).toBe(2);
    registry.spawned("one");
    await settle();
    expect(registry.lastKnown()[0]).not.toHaveProperty("cannotSpawn");
  });

  it("looks again for a spawn that is refused for want of room right after a look, or during one", async () => {
    const { registry, clock, one, checks } = make();
    await using _ = registry.watch();
    await settle();
    const told = () => registry.lastKnown()[0]?.cannotSpawn;
    await clock.advance(500);
    one.checkResult = { healthy: true, notes: [], cannotSpawn: "12 MB were free" };
    registry.refusedForRoom("one");
    registry.refusedForRoom("one");
    await clock.advance(1_500);
    await settle();
    expect(told()).toBe("12 MB were free");
    expect(checks()).toBe(2);

    await clock.advance(2_000);
    const looked = Promise.withResolvers<ProviderCheck>();
    const check = vi.spyOn(one, "check").mockReturnValueOnce(looked.promise);
    registry.spawned("one");
    registry.refusedForRoom("one");
    looked.resolve({ healthy: true, notes: [] });
    await settle();
    expect(told()).toBeUndefined();
    await clock.advance(2_000);
    await settle();
    expect(told()).toBe("12 MB were free");
    await clock.advance(5_000);
    expect(check).toHaveBeenCalledTimes(2);
  });

  it("refuses a default that is not enabled", () => {
    const providers = [new ScriptedProvider({ name: "one" })];
    expect(() => new ProviderRegistry({ providers, defaultName: "two", clock: new FakeClock() })).toThrow(
      /"two"/,
    );
  });

  it("tells health with the count of runtimes where there is an inventory", async () => {
    const { registry, clock } = make();
    registry.inventoryTaken("one", { count: 1 });
    const [first, second] = await registry.health({ signal: forever });
    expect(first).toMatchObject({ name: "one", healthy: true, default: false, runtimeCount: 1 });
    expect(first?.lastChecked).toEqual(clock.now());
    expect(second).toMatchObject({ name: "two", healthy: true, default: true, capabilities: ["spawn"] });
    expect(second).not.toHaveProperty("runtimeCount");
  });

  it("keeps a check for ten seconds, unless asked to look again, and shares one under way", async () => {
    const { registry, clock, checks } = make();
    await Promise.all([
      registry.health({ signal: forever }),
      registry.health({ signal: forever, refresh: true }),
    ]);
    expect(checks()).toBe(1);
    await clock.advance(9_999);
    await registry.health({ signal: forever });
    expect(checks()).toBe(1);
    await registry.health({ signal: forever, refresh: true });
    expect(checks()).toBe(2);
    await clock.advance(10_000);
    await registry.health({ signal: forever });
    expect(checks()).toBe(3);
  });

  it("counts a provider that throws or cannot list its runtimes as unhealthy, with the reason", async () => {
    const { registry, one } = make();
    registry.inventoryTaken("one", { error: "no socket" });
    const entry = await registry.healthOf("one", { signal: forever });
    expect(entry).toMatchObject({ healthy: false, error: "no socket" });
    registry.inventoryTaken("one", { count: 0 });
    // A look that a listing brings is shared while it is under way.
    await registry.healthOf("one", { signal: forever });
    one.check = () => Promise.reject(new Error("no engine"));
    const again = await registry.healthOf("one", { signal: forever, refresh: true });
    expect(again).toMatchObject({ healthy: false, error: "no engine" });
  });

  it("tells what was found last without looking, and looks along with each listing but the first", async () => {
    const { registry, one, checks, clock } = make();
    expect(registry.lastKnown()).toMatchObject([
      { name: "one", healthy: false, error: "it was not looked at yet" },
      { name: "two", healthy: false },
    ]);
    registry.inventoryTaken("one", { count: 3 });
    expect(registry.lastKnown()[0]).toMatchObject({ healthy: true, runtimeCount: 3, latencyMs: 0 });
    expect(checks()).toBe(0);
    one.checkResult = { healthy: false, error: "no engine", notes: [] };
    registry.inventoryTaken("one", { count: 3 });
    await registry.healthOf("one", { signal: forever });
    expect(checks()).toBe(1);
    await clock.advance(60_000);
    expect(registry.lastKnown()[0]).toMatchObject({ healthy: false, error: "no engine" });
    expect(checks()).toBe(1);
    // What a listing brought is not kept for those who ask.
    registry.inventoryTaken("one", { count: 3 });
    await settle();
    await registry.healthOf("one", { signal: forever });
    expect(checks()).toBe(3);
  });

  it("looks by itself now and then, for those who only want to know what was found", async () => {
    const { registry, one, checks, clock } = make();
    const watch = registry.watch();
    await settle();
    expect(checks()).toBe(1);
    expect(registry.lastKnown()[0]).toMatchObject({ name: "one", healthy: true });
    one.checkResult = { healthy: false, error: "no engine", notes: [] };
    await clock.advance(15_000);
    await settle();
    expect(registry.lastKnown()[0]).toMatchObject({ healthy: false, error: "no engine" });
    // One that hangs is not asked again meanwhile.
    let undone = false;
    const check = vi.fn(async ({ signal }: CallOptions) => {
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      await settle();
      undone = true;
      throw signal.reason;
    });
    Object.assign(one, { check });
    await clock.advance(60_000);
    expect(check).toHaveBeenCalledTimes(1);
    // Its end is waited for: what it made has to be gone before its provider is.
    await watch[Symbol.asyncDispose]();
    expect(undone).toBe(true);
    await clock.advance(60_000);
    expect(check).toHaveBeenCalledTimes(1);
  });

  it("takes spawns again once a provider that was only slow has answered, and asks it once meanwhile", async () => {
    holdDeadlines();
    const { registry, one } = make();
    const answers = Promise.withResolvers<typeof one.checkResult>();
    const check = vi.fn((_: CallOptions) => answers.promise);
    Object.assign(one, { check });
    const first = registry.healthOf("one", { signal: forever });
    for (const refused of [false, true]) {
      await vi.advanceTimersByTimeAsync(5_000);
      await settle();
      expect(registry.refusal("one") !== undefined).toBe(refused);
    }
    expect(await first).toMatchObject({ healthy: false, error: "the deadline of 5000 ms passed" });
    expect(check).toHaveBeenCalledTimes(1);
    expect(check.mock.calls[0]?.[0].signal.aborted).toBe(false);
    answers.resolve({ healthy: true, notes: [] });
    await settle();
    expect(() => registry.admit("one")).not.toThrow();
  });

  it("takes spawns while one check was cut off before it said anything, and looks again at once", async () => {
    const { registry, one, checks } = make();
    one.checkResult = { healthy: false, unanswered: true, error: "it was killed", notes: [] };
    let refusedAfterOne: string | undefined;
    const check = one.check.bind(one);
    Object.assign(one, {
      check: async () => {
        if (checks() === 1) refusedAfterOne = registry.refusal("one");
        return check();
      },
    });
    expect(await registry.healthOf("one", { signal: forever })).toMatchObject({ healthy: false });
    expect(registry.refusal("one")).toBeUndefined();
    await vi.waitFor(() => expect(checks()).toBe(2));
    await settle();
    expect(refusedAfterOne).toBeUndefined();
    expect(registry.refusal("one")).toContain("it was killed");
  });

  it("gives up a question after half a minute, asks anew, and refuses spawns meanwhile", async () => {
    holdDeadlines();
    const { registry, one } = make();
    const check = vi.fn((_: CallOptions) => new Promise<never>(() => undefined));
    Object.assign(one, { check });
    for (let turn = 0; turn < 7; turn += 1) {
      void registry.healthOf("one", { signal: forever, refresh: true });
      await vi.advanceTimersByTimeAsync(5_000);
      await settle();
      if (turn > 0) expect(registry.refusal("one")).toBeDefined();
    }
    expect(check.mock.calls.map(([{ signal }]) => signal.aborted)).toEqual([true, false]);
  });
});
