import fc from "fast-check";
import { expect, test } from "vitest";
import { parseRange } from "./range.ts";

test("a range never leaves its file", () => {
  const part = fc.oneof(fc.constant(""), fc.nat({ max: 200 }).map(String));
  fc.assert(
    fc.property(part, part, fc.nat({ max: 100 }), (first, last, size) => {
      const within = parseRange(`bytes=${first}-${last}`)?.within(size);
      if (within === undefined) return;
      expect(within.offset).toBeGreaterThanOrEqual(0);
      expect(within.length).toBeGreaterThan(0);
      expect(within.offset + within.length).toBeLessThanOrEqual(size);
    }),
  );
});

test.each(["bytes=", "bytes=-", "bytes=a-b", "bytes=1-2,3-4", "items=0-1", "bytes=9-1", "bytes=1", ""])(
  "%j is answered with the whole file",
  (header) => {
    expect(parseRange(header)).toBeUndefined();
  },
);
