import { expect, test } from "vitest";
import { spend, spendRead } from "./spent-bytes.ts";

test("spend() gives back memory that is all of the bytes, and no other", () => {
  const whole = Buffer.allocUnsafeSlow(100);
  const part = Buffer.allocUnsafeSlow(100).subarray(0, 99);
  const pooled = Buffer.from("of the pool");
  for (const bytes of [whole, part, pooled]) spend(bytes);
  expect([whole.length, part.length, String(pooled)]).toEqual([0, 99, "of the pool"]);
  expect(() => spend(whole)).not.toThrow();
});

test("spendRead() gives back memory that a socket did not fill, and none that something was cut off", () => {
  const read = Buffer.allocUnsafeSlow(100).subarray(0, 99);
  const rest = Buffer.allocUnsafeSlow(100).subarray(1);
  for (const bytes of [read, rest]) spendRead(bytes);
  expect([read.length, rest.length]).toEqual([0, 99]);
});
