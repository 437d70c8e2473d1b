import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { beyondBounds, JsonLook } from "./bounded-json.ts";

const bounds = { maxDepth: 8, maxParts: 100 };
const look = (text: string) => beyondBounds(Buffer.from(text), bounds);

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
      fc.property(value, fc.nat(2), fc.integer({ min: 1, max: 5 }), (made, indent, pieceLength) => {
        const bytes = Buffer.from(JSON.stringify(made, null, indent));
        const found = beyondBounds(bytes, bounds);
        const tooMuch = depthOf(made) > bounds.maxDepth || partsOf(made) > bounds.maxParts;
        expect(found !== undefined).toBe(tooMuch);
        // However it comes.
        const pieces = new JsonLook(bounds);
        const inPieces: (string | undefined)[] = [];
        for (let from = 0; from < bytes.length; from += pieceLength)
          inPieces.push(pieces.add(bytes.subarray(from, from + pieceLength)), pieces.add(Buffer.alloc(0)));
        expect(inPieces.find((one) => one !== undefined)).toBe(found);
      }),
      { numRuns: 200 },
    );
  });

  it("says what is too much", () => {
    expect(look("[".repeat(9))).toBe("it is nested more than 8 deep");
    expect(look(`[${"1,".repeat(100)}1]`)).toBe("it holds more than 100 values");
    expect(look('"no end')).toBeUndefined();
    const names = (count: number) => Buffer.from(`{${'"a:":1,'.repeat(count)}`);
    const few = { ...bounds, maxNames: 9 };
    expect(beyondBounds(names(9), few)).toBeUndefined();
    expect(beyondBounds(names(10), few)).toBe("it holds more than 9 names of fields");
  });

  it.each([
    ["escaped quotes", `["${'\\"'.repeat(4_000_000)}"]`],
    ["escaped backslashes", `["${"\\\\".repeat(4_000_000)}"]`],
    ["digits", `[${"1".repeat(8_000_000)}]`],
    ["spaces and no end", `[${" ".repeat(8_000_000)}`],
    ["short strings", `[${'"a",'.repeat(2_000_000)}1]`],
    ["text", `["${"a".repeat(8_000_000)}"]`],
    ["text of two bytes", `["${"\u00e9".repeat(4_000_000)}"]`],
  ])("makes nothing of eight megabytes of %s", (_what, text) => {
    const bytes = Buffer.from(text);
    const wide = { maxDepth: 8, maxParts: 10_000_000 };
    expect(beyondBounds(bytes, wide)).toBeUndefined();
    const cost = () => {
      const before = process.cpuUsage();
      beyondBounds(bytes, wide);
      return process.cpuUsage(before).user;
    };
    // Ten nanoseconds a byte, where it takes one or two.
    expect(Math.min(cost(), cost(), cost(), cost(), cost())).toBeLessThan(80_000);
  });

  it.each([1_022, 1_023, 1_024, 1_025, 2_047, 2_048, 2_049])(
    "finds the end of a string with escapes on both sides of character %i",
    (length) => {
      for (const tail of ['\\"', "\\\\", '\\\\\\"', "x", ""]) {
        const text = `["\\"${"a".repeat(length)}${tail}",[[[[[[[[[1]]]]]]]]]]`;
        expect(() => JSON.parse(text)).not.toThrow();
        expect([tail, look(text)]).toEqual([tail, "it is nested more than 8 deep"]);
        expect(look(`["\\"${"a".repeat(length)}${tail}[[[[[[[[[["]`)).toBeUndefined();
      }
    },
  );
});
