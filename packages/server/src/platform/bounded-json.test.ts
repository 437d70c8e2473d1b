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
});
