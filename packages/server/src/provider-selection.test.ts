import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { ScriptedProvider } from "./core/testing/scripted-provider.ts";
import { silentLogger } from "./platform/logger.ts";
import { checkCandidates } from "./provider-selection.ts";

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
  const checked = checkCandidates([candidate], { logger: silentLogger });
  await vi.advanceTimersByTimeAsync(11_000);
  expect(warn.mock.calls).toEqual([
    [{ provider: "native", waited_ms: 5_000 }, "waiting for provider native, which tries a sandbox"],
    [{ provider: "native", waited_ms: 10_000 }, "waiting for provider native, which tries a sandbox"],
  ]);
  check.resolve({ healthy: true, notes: [] });
  expect(await checked).toMatchObject([{ check: { healthy: true } }]);
  expect(vi.getTimerCount()).toBe(0);
});
