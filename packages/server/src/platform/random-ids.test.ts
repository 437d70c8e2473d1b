import { expect, it } from "vitest";
import { randomIds } from "./random-ids.ts";

it("ids have the shape that is documented and do not repeat", () => {
  const ids = Array.from({ length: 5_000 }, () => randomIds.sandboxId());
  expect(new Set(ids).size).toBe(ids.length);
  for (const id of ids) expect(id).toMatch(/^sb-[a-z0-9]{12}$/);
  expect(randomIds.execId()).toMatch(/^ex-[a-z0-9]{16}$/);
  expect(randomIds.secret(32)).toMatch(/^[0-9a-f]{64}$/);
});

it("every character of the alphabet comes about equally often", () => {
  const counts = new Map<string, number>();
  for (let index = 0; index < 6_000; index++) {
    for (const character of randomIds.sandboxId().slice(3))
      counts.set(character, (counts.get(character) ?? 0) + 1);
  }
  expect(counts.size).toBe(36);
  for (const count of counts.values()) expect(count).toBeGreaterThan(1_500);
});
