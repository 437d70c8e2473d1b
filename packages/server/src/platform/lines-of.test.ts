import fc from "fast-check";
import { expect, it } from "vitest";
import { linesOf, TooLongLine } from "./lines-of.ts";

async function* pieces(text: string, cuts: readonly number[] = [7]) {
  const bytes = Buffer.from(text);
  for (let at = 0, turn = 0; at < bytes.length; turn += 1) {
    const length = cuts[turn % cuts.length] ?? 1;
    yield bytes.subarray(at, at + length);
    at += length;
  }
}

it("gives the lines of a stream, however its pieces are cut", async () => {
  const texts = fc.array(
    fc.string({ unit: "grapheme", maxLength: 20 }).map((text) => text.replaceAll(/[\r\n]/g, "")),
  );
  const cuts = fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1 });
  await fc.assert(
    fc.asyncProperty(texts, cuts, fc.constantFrom("\n", "\r\n"), async (lines, lengths, ending) => {
      const whole = lines.map((line) => line + ending).join("");
      expect(await Array.fromAsync(linesOf(pieces(whole, lengths), { longestBytes: 1_000 }))).toEqual(lines);
    }),
  );
  expect(await Array.fromAsync(linesOf(pieces("one\n\nlast"), { longestBytes: 4 }))).toEqual([
    "one",
    "",
    "last",
  ]);
});

it("a line without end is a TooLongLine, behind which nothing is read", async () => {
  let read = 0;
  let left = false;
  async function* endless() {
    try {
      yield Buffer.from("first\n");
      for (;;) {
        read += 1_000;
        yield Buffer.alloc(1_000, " ");
      }
    } finally {
      left = true;
    }
  }
  const got: string[] = [];
  const reading = (async () => {
    for await (const line of linesOf(endless(), { longestBytes: 10_000 })) got.push(line);
  })();
  await expect(reading).rejects.toThrow(TooLongLine);
  expect({ got, read, left }).toEqual({ got: ["first"], read: 11_000, left: true });
});
