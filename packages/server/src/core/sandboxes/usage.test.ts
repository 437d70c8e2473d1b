import { expect, test, vi } from "vitest";
import { ProviderError, type RuntimeStats } from "../../ports/index.ts";
import type { ListedSandbox } from "../../ports/store.ts";
import { largestUsagePage, listUsage } from "./usage.ts";

const row = (id: string, state = "running") => ({ id, state }) as unknown as ListedSandbox;
const listOf = (...items: ListedSandbox[]) => ({
  list: () => Promise.resolve({ items, nextCursor: "1.sb-a" }),
  signal: new AbortController().signal,
  onFault: (_id: string, error: unknown) => {
    throw error;
  },
});

test("only those that run are asked, and one that cannot tell is there without figures", async () => {
  const stats = vi.fn(async (id: string): Promise<RuntimeStats> => {
    if (id === "sb-broken") throw new ProviderError("the engine does not answer");
    return { pids: 3 };
  });
  const from = { ...listOf(row("sb-a"), row("sb-broken"), row("sb-new", "creating")), stats };
  expect(await listUsage({ limit: 100 }, from)).toEqual({
    items: [
      { sandbox: row("sb-a"), stats: { pids: 3 } },
      { sandbox: row("sb-broken") },
      { sandbox: row("sb-new", "creating") },
    ],
    nextCursor: "1.sb-a",
  });
  expect(stats.mock.calls.map(([id]) => id)).toEqual(["sb-a", "sb-broken"]);
});

test("one that does not answer is waited for a while, and not for longer", async () => {
  vi.useFakeTimers();
  try {
    const stats = (_id: string, { signal }: { signal: AbortSignal }) =>
      new Promise<RuntimeStats>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    const page = listUsage({ limit: 100 }, { ...listOf(row("sb-a")), stats });
    await vi.advanceTimersByTimeAsync(2_000);
    expect((await page).items).toEqual([{ sandbox: row("sb-a") }]);
  } finally {
    vi.useRealTimers();
  }
});

test("a caller that leaves ends it, a fault of ours is told and fails nobody, a page has its bound", async () => {
  const left = AbortSignal.abort(new Error("left"));
  const stats = () => Promise.reject(new ProviderError("ended"));
  await expect(listUsage({ limit: 1 }, { ...listOf(row("sb-a")), stats, signal: left })).rejects.toThrow(
    "left",
  );
  const onFault = vi.fn();
  const fault = async (id: string): Promise<RuntimeStats> => {
    if (id === "sb-a") throw new TypeError("no such method");
    return { pids: 1 };
  };
  const both = listOf(row("sb-a"), row("sb-b"));
  expect((await listUsage({ limit: 2 }, { ...both, stats: fault, onFault })).items).toEqual([
    { sandbox: row("sb-a") },
    { sandbox: row("sb-b"), stats: { pids: 1 } },
  ]);
  expect(onFault).toHaveBeenCalledWith("sb-a", new TypeError("no such method"));
  await expect(listUsage({ limit: largestUsagePage + 1 }, { ...listOf(), stats })).rejects.toThrow(
    "limit must be a whole number from 1 to 100, not 101",
  );
});
