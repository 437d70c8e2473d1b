import { expect, test } from "vitest";
import { ownBytes } from "./own-bytes.ts";
import { heldBytes } from "./testing/held-memory.ts";

test("a small part of something large takes the memory of its bytes, whatever else is allocated meanwhile", async () => {
  const before = await heldBytes();
  const kept: Buffer[] = [];
  for (let n = 0; n < 500; n++) {
    kept.push(ownBytes(Buffer.alloc(65_536, n).subarray(0, 1)));
    // What others take from Node's pool, and let go of.
    for (let other = 0; other < 8; other++) Buffer.allocUnsafe(Buffer.poolSize / 4);
  }
  expect((await heldBytes()) - before).toBeLessThan(2 * 1_048_576);
  expect(kept.map(([byte]) => byte)).toEqual(Array.from({ length: 500 }, (_, n) => n % 256));
});

test("a large part is not copied", () => {
  const whole = Buffer.alloc(65_536);
  expect(ownBytes(whole.subarray(0, 32_768)).buffer).toBe(whole.buffer);
});
