import { once } from "node:events";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { CandidateChecks, type CheckedCandidate, type StillOpen } from "./candidate-checks.ts";
import { ScriptedProvider } from "./core/testing/scripted-provider.ts";
import { silentLogger } from "./platform/logger.ts";
import type { RuntimeProvider } from "./ports/index.ts";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

it("says whom a start waits for, and no more once it has answered", async () => {
  const provider = new ScriptedProvider();
  const check = Promise.withResolvers<{ healthy: boolean; notes: string[] }>();
  vi.spyOn(provider, "check").mockReturnValue(check.promise);
  const warn = vi.spyOn(silentLogger, "warn");
  const candidate = { name: "native" as const, isolation: "enforced" as const, enabled: true, provider };
  const checked = new CandidateChecks([candidate], { logger: silentLogger }).all();
  await vi.advanceTimersByTimeAsync(11_000);
  expect(warn.mock.calls).toEqual([
    [{ provider: "native", waited_ms: 5_000 }, "waiting for provider native, which tries a sandbox"],
    [{ provider: "native", waited_ms: 10_000 }, "waiting for provider native, which tries a sandbox"],
  ]);
  check.resolve({ healthy: true, notes: [] });
  expect(await checked).toMatchObject([{ check: { healthy: true } }]);
  expect(vi.getTimerCount()).toBe(0);
});

/** One that says nothing until it is given up, as an engine that stands still. */
function silent(name: "native" | "docker") {
  const provider: RuntimeProvider = new ScriptedProvider({ name });
  vi.spyOn(provider, "check").mockImplementation(async ({ signal }) => {
    await once(signal, "abort");
    return { healthy: false, error: "given up", notes: [] };
  });
  return { name, isolation: "enforced" as const, enabled: undefined, provider };
}

function working(name: "native" | "docker") {
  return {
    name,
    isolation: "enforced" as const,
    enabled: undefined,
    provider: new ScriptedProvider({ name }),
  };
}

function slow(name: "native" | "docker", afterMs: number) {
  const candidate = working(name);
  vi.spyOn(candidate.provider, "check").mockImplementation(async () => {
    await new Promise((resolve) => setTimeout(resolve, afterMs));
    return { healthy: true, notes: [] };
  });
  return candidate;
}

/** When it was done, milliseconds; it may not have been yet. */
async function timed<T>(promise: Promise<T>, longestMs: number): Promise<{ atMs: number; value: T }> {
  const startedMs = Date.now();
  const done = promise.then((value) => ({ atMs: Date.now() - startedMs, value }));
  await vi.advanceTimersByTimeAsync(longestMs);
  return await done;
}

it("waits a second for the others once what is known is enough, and tells who has not answered", async () => {
  await using checks = new CandidateChecks([working("native"), silent("docker")], { logger: silentLogger });
  const open = vi.fn(
    (known: readonly CheckedCandidate[]): StillOpen => (known[0]?.unanswered === true ? "choice" : "nothing"),
  );
  const { atMs, value } = await timed(checks.inTime(open), 12_000);
  expect(atMs).toBe(1_000);
  expect(value).toMatchObject([
    { check: { healthy: true } },
    { check: { healthy: false }, unanswered: true },
  ]);
  expect(value[0]).not.toHaveProperty("unanswered");
  expect(vi.getTimerCount()).toBe(0);
});

it("waits for 10 s while what is not known could matter", async () => {
  await using checks = new CandidateChecks([silent("native"), working("docker")], { logger: silentLogger });
  const { atMs, value } = await timed(
    checks.inTime(() => "choice"),
    12_000,
  );
  expect(atMs).toBe(10_000);
  expect(value).toMatchObject([{ unanswered: true }, { check: { healthy: true } }]);
});

it("waits for nobody when all have answered", async () => {
  await using checks = new CandidateChecks([working("native"), working("docker")], { logger: silentLogger });
  expect(
    (
      await timed(
        checks.inTime(() => "nothing"),
        12_000,
      )
    ).atMs,
  ).toBe(0);
});

it("knows of those that are not tried before anybody has answered", async () => {
  const off = { ...silent("native"), enabled: false };
  const missing = {
    name: "proot" as const,
    isolation: "enforced" as const,
    enabled: undefined,
    missing: "no proot",
  };
  await using checks = new CandidateChecks([off, missing, working("docker")], { logger: silentLogger });
  const open = vi.fn((_: readonly CheckedCandidate[]): StillOpen => "choice");
  const done = checks.inTime(open);
  expect(open.mock.calls[0]?.[0]).toMatchObject([
    { check: undefined, excluded: expect.stringContaining("providers.native.enabled: true") },
    { check: undefined, excluded: "no proot" },
    { unanswered: true },
  ]);
  await done;
});

it.each([
  ["5 s for a default that hangs", () => silent("docker"), 5_000],
  ["for a default that is slow, and a second for the others then", () => slow("docker", 3_000), 4_000],
])("waits %s", async (_, made, expected) => {
  await using checks = new CandidateChecks([silent("native"), made()], { logger: silentLogger });
  const open = (known: readonly CheckedCandidate[]) =>
    known[1]?.unanswered === true ? "default" : "nothing";
  expect((await timed(checks.inTime(open), 12_000)).atMs).toBe(expected);
});

it("waits on when an answer makes the others matter after all", async () => {
  const checked = [working("native"), silent("docker")];
  await using checks = new CandidateChecks(checked, { logger: silentLogger });
  const open = (known: readonly CheckedCandidate[]) => (known[0]?.unanswered === true ? "nothing" : "choice");
  const { atMs } = await timed(checks.inTime(open), 12_000);
  expect(atMs).toBe(10_000);
  expect(vi.getTimerCount()).toBe(0);
});

it("a check that throws is one that failed, and the others are waited for", async () => {
  const thrown = working("native");
  vi.spyOn(thrown.provider, "check").mockRejectedValue(new Error("no such file"));
  await using checks = new CandidateChecks([thrown, slow("docker", 2_000)], { logger: silentLogger });
  const { atMs, value } = await timed(
    checks.inTime(() => "choice"),
    12_000,
  );
  expect(atMs).toBe(2_000);
  expect(value).toMatchObject([
    { check: { healthy: false, error: "no such file" } },
    { check: { healthy: true } },
  ]);
});

it.each([
  { untried: true, error: "the disk is full" },
  { unanswered: true, error: "what tried it was killed" },
])("leaves it open whether one works that could not be tried: $error", async (said) => {
  const candidate = working("native");
  const check = { healthy: false, notes: [], ...said };
  vi.spyOn(candidate.provider, "check").mockResolvedValue(check);
  const [checked] = await new CandidateChecks([candidate], { logger: silentLogger }).all();
  expect(checked).toEqual({ candidate, check, unanswered: true });
});
