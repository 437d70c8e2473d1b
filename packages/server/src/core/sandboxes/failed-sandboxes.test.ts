import { expect, test } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import type { SandboxRow } from "../../ports/store.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { FailedSandboxes } from "./failed-sandboxes.ts";

/** Failed sandboxes of these owners, the newest first. */
function setUp(owners: readonly string[]) {
  const clock = new FakeClock();
  const expiresAt = new Date(clock.now().getTime() + 60_000);
  const rows = owners.map((ownerId, n) => ({ id: `sb-${n}`, ownerId, expiresAt }) as unknown as SandboxRow);
  const gone: string[] = [];
  const list = async ({ after = 0, limit }: { after?: number; limit: number }) => {
    const next = after + limit;
    return { rows: rows.slice(after, next), ...(next < rows.length && { next }) };
  };
  const context = {
    store: { sandboxes: { list } },
    clock,
    logger: silentLogger,
    registry: { reaches: () => true },
  };
  const failed = new FailedSandboxes(
    context as unknown as ConstructorParameters<typeof FailedSandboxes>[0],
    { destroy: async (id: string) => void gone.push(id) } as never,
  );
  return { gone, sweep: () => failed.sweep({ signal: new AbortController().signal }) };
}

test("of what one owner let fail no more is kept than leaves room for others'", async () => {
  const mine = Array.from({ length: 400 }, () => "ann");
  const many = Array.from({ length: 3_000 }, () => "bob");
  const { gone, sweep } = setUp([...many, ...mine]);
  expect(await sweep()).toBe(2_500);
  expect(gone).toEqual(Array.from({ length: 2_500 }, (_, n) => `sb-${500 + n}`));
});

test("of all that failed the newest thousand are kept", async () => {
  const { gone, sweep } = setUp(Array.from({ length: 1_002 }, (_, n) => `owner-${n}`));
  expect(await sweep()).toBe(2);
  expect(gone).toEqual(["sb-1000", "sb-1001"]);
});
