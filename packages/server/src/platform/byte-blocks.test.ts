import fc from "fast-check";
import { expect, test } from "vitest";
import { ByteBlocks } from "./byte-blocks.ts";
import { heldBytes } from "./testing/held-memory.ts";

const size = fc.oneof(fc.integer({ min: 0, max: 3 }), fc.integer({ min: 0, max: 200_000 }));

test("what was added in pieces of any size comes out in one", () => {
  fc.assert(
    fc.property(fc.array(size, { maxLength: 12 }), (sizes) => {
      const blocks = new ByteBlocks();
      const pieces = sizes.map((bytes, index) => Buffer.alloc(bytes, index + 1));
      for (const piece of pieces) blocks.add(piece);
      const whole = Buffer.concat(pieces);
      expect(blocks.bytes).toBe(whole.length);
      expect(blocks.take().equals(whole)).toBe(true);
      expect([blocks.bytes, blocks.take().length]).toEqual([0, 0]);
    }),
    { numRuns: 60 },
  );
});

test("pieces of one byte take the memory of their bytes, and nothing of what they were cut from", async () => {
  const blocks = new ByteBlocks();
  const before = await heldBytes();
  for (let n = 0; n < 300_000; n++) blocks.add(Buffer.alloc(1, n));
  for (let n = 0; n < 300; n++) blocks.add(Buffer.alloc(65_536, n).subarray(0, 1));
  expect((await heldBytes()) - before).toBeLessThan(4 * 1_048_576);
  expect(blocks.bytes).toBe(300_300);
});

test("what has begun and does not go on takes little more than its bytes", async () => {
  const before = await heldBytes();
  const begun = Array.from({ length: 500 }, () => {
    const blocks = new ByteBlocks();
    blocks.add(Buffer.from("{"));
    blocks.add(Buffer.from('"'));
    return blocks;
  });
  expect((await heldBytes()) - before).toBeLessThan(500 * 4_096);
  expect(begun.every(({ bytes }) => bytes === 2)).toBe(true);
});
