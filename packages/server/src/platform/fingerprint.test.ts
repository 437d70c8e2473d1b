import { expect, test } from "vitest";
import { fingerprint } from "./fingerprint.ts";

test("tells keys apart, and nothing to whom the installation's secret is unknown", () => {
  const [one, another] = [new Uint8Array(32), new Uint8Array(32).fill(1)];
  expect(fingerprint("key", one)).toBe(fingerprint("key", one));
  expect(fingerprint("key", one)).not.toBe(fingerprint("other", one));
  expect(fingerprint("key", one)).not.toBe(fingerprint("key", another));
});
