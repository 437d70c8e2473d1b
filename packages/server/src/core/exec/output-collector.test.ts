import fc from "fast-check";
import { expect, test } from "vitest";
import { OutputCollector } from "./output-collector.ts";

test("keeps the first bytes, whatever the pieces, and says whether something was dropped", () => {
  fc.assert(
    fc.property(
      fc.array(fc.uint8Array({ maxLength: 40 })),
      fc.integer({ min: 1, max: 200 }),
      (pieces, maxBytes) => {
        const collector = new OutputCollector({ maxBytes });
        for (const piece of pieces) collector.add(Buffer.from(piece));
        const whole = Buffer.concat(pieces);
        expect(collector.truncated).toBe(whole.length > maxBytes);
        if (!collector.truncated) expect(String(collector.written("utf8"))).toBe(whole.toString("utf8"));
      },
    ),
  );
});

test("a character that the limit cuts in two is left out", () => {
  const collector = new OutputCollector({ maxBytes: 5 });
  collector.add(Buffer.from("ab🐎cd"));
  expect([String(collector.written("utf8")), collector.truncated]).toEqual(["ab", true]);
});
