import { expect, test } from "vitest";
import { BadRequest } from "../../ports/errors.ts";
import { parseSignal } from "./signals.ts";

test.each([
  ["SIGTERM", 15],
  ["term", 15],
  [" Kill ", 9],
  ["SIGINT", 2],
  [1, 1],
  ["64", 64],
])("%j is signal %i", (signal, number) => {
  expect(parseSignal(signal)).toBe(number);
});

test.each([
  "",
  "SIG",
  "SIGNOTHING",
  "0",
  "65",
  "-9",
  "1.5",
  "constructor",
  "__proto__",
  0,
  65,
  1.5,
  Number.NaN,
])("%j is refused", (signal) => {
  expect(() => parseSignal(signal)).toThrow(BadRequest);
});
