import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { beyondBounds } from "./bounded-json.ts";

const bounds = { maxDepth: 8, maxParts: 100 };

function depthOf(value: unknown): number {
  if (value === null || typeof value !== "object") return 0;
  return 1 + Math.max(0, ...Object.values(value).map(depthOf));
}

function partsOf(value: unknown): number {
  if (value === null || typeof value !== "object") return 0;
  const inside = Object.values(value);
  const colons = Array.isArray(value) ? 0 : inside.length;
  return (
    1 + colons + Math.max(0, inside.length - 1) + inside.reduce<number>((sum, one) => sum + partsOf(one), 0)
  );
}

describe("beyondBounds()", () => {
  it("finds what is nested too deep or holds too much, and only that, whatever is in strings", () => {
    const text = fc.oneof(
      fc.string(),
      fc.stringMatching(/^[[\]{},:"\\]*$/),
      fc.constant('\\"'),
      fc.constant("\\\\"),
    );
    const { value } = fc.letrec((tie) => ({
      value: fc.oneof(
        { depthSize: "medium", maxDepth: 10 },
        text,
        fc.integer(),
        fc.array(tie("value"), { maxLength: 4 }),
        fc.dictionary(text, tie("value"), { maxKeys: 4 }),
      ),
    }));
    fc.assert(
      fc.property(value, fc.nat(2), (made, indent) => {
        const found = beyondBounds(JSON.stringify(made, null, indent), bounds);
        const tooMuch = depthOf(made) > bounds.maxDepth || partsOf(made) > bounds.maxParts;
        expect(found !== undefined).toBe(tooMuch);
      }),
      { numRuns: 200 },
    );
  });

  it("says what is too much", () => {
    expect(beyondBounds("[".repeat(9), bounds)).toBe("it is nested more than 8 deep");
    expect(beyondBounds(`[${"1,".repeat(100)}1]`, bounds)).toBe("it holds more than 100 values");
    expect(beyondBounds('"no end', bounds)).toBeUndefined();
  });

  it("costs no more than parsing, however many quotes are escaped", () => {
    const text = `["${'\\"'.repeat(4_000_000)}"]`;
    const cost = (act: () => unknown) => {
      const rounds = Array.from({ length: 5 }, () => {
        const before = process.cpuUsage();
        act();
        return process.cpuUsage(before).user;
      });
      return Math.min(...rounds);
    };
    expect(beyondBounds(text, bounds)).toBeUndefined();
    expect(cost(() => beyondBounds(text, bounds))).toBeLessThan(1.5 * cost(() => JSON.parse(text)));
  });

  it.each([1_022, 1_023, 1_024, 1_025, 2_047, 2_048, 2_049])(
    "finds the end of a string with escapes on both sides of character %i",
    (length) => {
      for (const tail of ['\\"', "\\\\", '\\\\\\"', "x", ""]) {
        const text = `["\\"${"a".repeat(length)}${tail}",[[[[[[[[[1]]]]]]]]]]`;
        expect(() => JSON.parse(text)).not.toThrow();
        expect([tail, beyondBounds(text, bounds)]).toEqual([tail, "it is nested more than 8 deep"]);
        expect(beyondBounds(`["\\"${"a".repeat(length)}${tail}[[[[[[[[[["]`, bounds)).toBeUndefined();
      }
    },
  );
});
