import fc from "fast-check";
import { expect, test } from "vitest";
import { HeldInput } from "./held-input.ts";

test("gives back what has not arrived, in whatever pieces it came", () => {
  const step = fc.oneof(
    fc.record({ give: fc.integer({ min: 0, max: 6_000 }) }),
    fc.record({ arrive: fc.double({ min: 0, max: 1, noNaN: true }) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), fc.nat(1_000), (steps, from) => {
      const held = new HeldInput();
      held.beginAt(from);
      let all = Buffer.alloc(0);
      let taken = 0;
      for (const done of steps) {
        if ("give" in done) {
          const piece = Buffer.from(
            Array.from({ length: done.give }, (_, index) => (all.length + index) % 251),
          );
          held.give(piece);
          all = Buffer.concat([all, piece]);
        } else {
          taken += Math.floor((all.length - taken) * done.arrive);
          held.arrived(from + taken);
        }
      }
      const missing = held.missing(from + taken);
      expect(missing === undefined ? undefined : Buffer.concat(missing)).toEqual(all.subarray(taken));
      expect(held.missing(from + all.length + 1)).toBeUndefined();
    }),
    { numRuns: 200 },
  );
});

test("what was typed is held in few blocks, and one that has arrived is used again", () => {
  const held = new HeldInput();
  const letter = Buffer.from("a");
  for (let typed = 0; typed < 400_000; typed += 1) held.give(letter);
  expect(held.heldBytes).toBeLessThan(450_000);
  expect(held.missing(0)?.length).toBeLessThan(30);
  held.arrived(400_000);
  expect(held.heldBytes).toBeLessThan(20_000);
});

test("what was given back is not changed by what is typed after it has arrived", () => {
  const held = new HeldInput();
  held.give(Buffer.from("abc"));
  const missing = held.missing(1) ?? [];
  held.arrived(3);
  held.give(Buffer.from("xyz"));
  expect(Buffer.concat(missing).toString()).toBe("bc");
  expect(Buffer.concat(held.missing(3) ?? []).toString()).toBe("xyz");
});
