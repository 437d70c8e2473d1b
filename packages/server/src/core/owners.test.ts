import { describe, expect, it } from "vitest";
import { BadRequest } from "../ports/errors.ts";
import { parseOwnerId } from "./owners.ts";

describe("parseOwnerId", () => {
  it("trims, and takes nothing for nobody", () => {
    expect(parseOwnerId(" acme\t")).toBe("acme");
    for (const nothing of [undefined, "", "  "]) expect(parseOwnerId(nothing)).toBe("");
  });

  it("counts code points, not UTF-16 units", () => {
    expect(parseOwnerId("🏠".repeat(128))).toBe("🏠".repeat(128));
    expect(() => parseOwnerId("🏠".repeat(129))).toThrow(/longer than 128/);
  });

  it("refuses whitespace, control characters and path separators of any script", () => {
    const bad = [
      "a b",
      "a\u00a0b",
      "a\u3000b",
      "a\u2028b",
      "a\0b",
      "a\u0085b",
      "a\u007fb",
      "a/b",
      "a\\b",
      "\ud800",
    ];
    for (const text of bad) expect(() => parseOwnerId(text), JSON.stringify(text)).toThrow(BadRequest);
    expect(() => parseOwnerId("a b")).toThrow('owner id "a b" must not contain whitespace');
  });
});
