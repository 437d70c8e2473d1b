import fc from "fast-check";
import { expect, test } from "vitest";
import type { ExecEvent, ExecExit } from "../../ports/sandbox-operations.ts";
import { OutputDecoder } from "./output-text.ts";

const exit: ExecExit = {
  exitCode: 0,
  reason: "exited",
  startedAt: new Date(0),
  endedAt: new Date(1),
  durationMs: 1,
  outputBytes: 0,
};

test("text in pieces of any size comes out whole, both streams mixed, no sequence split", () => {
  fc.assert(
    fc.property(
      fc.string({ unit: "grapheme", maxLength: 60 }),
      fc.array(fc.integer({ min: 1, max: 7 }), { minLength: 1 }),
      (text, sizes) => {
        const bytes = Buffer.from(text);
        const decoder = new OutputDecoder();
        const events: ExecEvent[] = [];
        let offset = 0;
        for (let at = 0, index = 0; at < bytes.length; index += 1) {
          const size = sizes[index % sizes.length] ?? 1;
          const data = bytes.subarray(at, at + size);
          for (const stream of ["stdout", "stderr"] as const) {
            events.push({ type: "output", stream, data, offset });
            offset += data.length;
          }
          at += size;
        }
        events.push({ type: "exit", exit });
        const pieces = events.flatMap((event) => decoder.decode(event));
        for (const stream of ["stdout", "stderr"])
          expect(
            pieces
              .filter((piece) => piece.stream === stream)
              .map((piece) => ("data" in piece ? piece.data : ""))
              .join(""),
          ).toBe(text);
        expect(pieces.at(-1)).toEqual({ stream: "exit", exit });
      },
    ),
  );
});

test("a sequence that never ends is replaced before the exit", () => {
  const decoder = new OutputDecoder();
  expect(
    decoder.decode({ type: "output", stream: "stdout", data: Buffer.from([0xf0, 0x9f]), offset: 0 }),
  ).toEqual([]);
  expect(decoder.decode({ type: "exit", exit })[0]).toMatchObject({ stream: "stdout", data: "\ufffd" });
});

test("a reader that missed bytes does not glue together what does not belong together", () => {
  const decoder = new OutputDecoder();
  decoder.decode({ type: "output", stream: "stdout", data: Buffer.from([0xf0, 0x9f]), offset: 0 });
  const pieces = decoder.decode({
    type: "output",
    stream: "stdout",
    data: Buffer.from("later"),
    offset: 100,
  });
  expect(pieces).toEqual([
    { stream: "stdout", data: "\ufffd", offset: 2 },
    { stream: "stdout", data: "later", offset: 100 },
  ]);
});
