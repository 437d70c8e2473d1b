import { expect, it } from "vitest";
import { Unavailable } from "../../ports/index.ts";
import { IdRanges, idsPerSandbox } from "./id-ranges.ts";

const base = 1_879_048_192;

it("two runtimes never hold the same range, and one keeps its own", () => {
  const ranges = new IdRanges({ base, offset: 4_095 });
  const first = ranges.take("rt-1");
  expect(first).toBe(base + 4_095 * idsPerSandbox);
  expect(ranges.take("rt-1")).toBe(first);
  expect(ranges.take("rt-2")).toBe(base);
});

it("a range found in a record is not given away until its runtime is removed", () => {
  const ranges = new IdRanges({ base, offset: 0 });
  ranges.restore(base, "rt-old");
  expect(ranges.take("rt-new")).toBe(base + idsPerSandbox);
  ranges.release("rt-old");
  const others = Array.from({ length: 4_095 }, (_, index) => ranges.take(`rt-${index}`));
  expect(others).toContain(base);
  expect(() => ranges.take("rt-last")).toThrow(Unavailable);
});
