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
  ["SIGIOT", 6],
  ["SIGCLD", 17],
  ["SIG33", 33],
  ["SIGRTMIN", 34],
  ["SIGRTMIN+3", 37],
  ["rtmax-1", 63],
  ["SIGRTMAX", 64],
])("%j is signal %i", (signal, number) => {
  expect(parseSignal(signal)).toBe(number);
});

test.each([
  "",
  "SIG",
  "SIGNOTHING",
  "SIG0",
  "SIG65",
  "SIGRTMIN-1",
  "SIGRTMIN+31",
  "SIGRTMAX+1",
  "SIGRTMIN+",
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
