import { expect, it } from "vitest";
import { checkPath } from "./paths.ts";

it.each([
  ["", /path must be given/],
  ["relative", /must be an absolute path/],
  ["/nul\0", /NUL/],
  [`/${"é".repeat(2_048)}`, /longer than 4096 bytes/],
  ["/bad\udcff", /path is not UTF-8/],
])("checkPath() refuses %j", (path, reason) => {
  expect(() => checkPath("path", path)).toThrow(reason);
});

it("checkPath() takes every other character", () => {
  for (const path of ["/", "/日本/é 😀/\ufffd", "/nl\nx"]) expect(checkPath("path", path)).toBe(path);
});
