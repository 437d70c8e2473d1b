import { expect, test } from "vitest";
import { PreviewPlaces } from "./preview-places.ts";

/** Takes places, each of another sandbox, until there is none. @returns how many, and what it was told then. */
function takeAll(places: PreviewPlaces, ownerId: string, sandboxId?: string) {
  for (let count = 0; ; count++)
    try {
      places.take({ sandboxId: sandboxId ?? `sb-${ownerId}-${count}`, ownerId });
    } catch (error) {
      return [count, (error as Error).message];
    }
}

test("owners have a quarter of all places, nobody's sandboxes three together, a sandbox what is set", () => {
  const places = new PreviewPlaces({ most: 40, mostOfSandbox: 5 });
  expect(takeAll(places, "ann")).toEqual([10, expect.stringContaining("of this owner have 10 connections")]);
  expect(takeAll(places, "")).toEqual([30, expect.stringContaining("40 connections")]);
  const others = new PreviewPlaces({ most: 40, mostOfSandbox: 5 });
  expect(takeAll(others, "", "sb-1")).toEqual([5, expect.stringContaining('sandbox "sb-1" has 5')]);
  expect(takeAll(others, "")).toEqual([25, expect.stringContaining("without an owner have 30 connections")]);
  expect(takeAll(others, "bob")).toEqual([10, expect.any(String)]);
});

test("a place that is given back is another's, once", () => {
  const places = new PreviewPlaces({ most: 4, mostOfSandbox: 1 });
  const place = places.take({ sandboxId: "sb-1", ownerId: "" });
  place[Symbol.dispose]();
  place[Symbol.dispose]();
  expect(places.taken).toBe(0);
  places.take({ sandboxId: "sb-1", ownerId: "" });
  expect(() => places.take({ sandboxId: "sb-1", ownerId: "" })).toThrow("sb-1");
});
