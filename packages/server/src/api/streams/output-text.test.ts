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
    { stream: "stdout", data: "\ufffd", offset: 0, nextOffset: 2 },
    { stream: "stdout", data: "later", offset: 100 },
  ]);
});

test("an offset and the bytes of its text tell where to go on, whatever was cut in two", () => {
  const text = Buffer.from("aé€😀z");
  for (let size = 1; size <= 4; size += 1) {
    const decoder = new OutputDecoder();
    const pieces = [];
    for (let offset = 0; offset < text.length; offset += size)
      pieces.push(
        ...decoder.decode({
          type: "output",
          stream: "stdout",
          data: text.subarray(offset, offset + size),
          offset,
        }),
      );
    let next = 0;
    for (const piece of pieces) {
      if (piece.stream === "exit") continue;
      expect(piece.offset).toBe(next);
      next += Buffer.byteLength(piece.data);
    }
    expect(next).toBe(text.length);
  }
});

test("bytes that are no UTF-8 leave no doubt where to go on", () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ minLength: 1, maxLength: 9 })), (parts) => {
      const decoder = new OutputDecoder();
      const pieces = [];
      let offset = 0;
      for (const part of parts) {
        pieces.push(...decoder.decode({ type: "output", stream: "stdout", data: Buffer.from(part), offset }));
        offset += part.length;
      }
      pieces.push(...decoder.decode({ type: "exit", exit }));
      let next = 0;
      for (const piece of pieces) {
        if (piece.stream === "exit") continue;
        expect(piece.offset).toBe(next);
        next = piece.nextOffset ?? next + Buffer.byteLength(piece.data);
      }
      expect(next).toBe(offset);
    }),
  );
});

test("base64 passes every piece as it came, and what the service says is marked", () => {
  const decoder = new OutputDecoder("base64");
  const bytes = Buffer.from([0xff, 0x00, 0xc3]);
  expect(decoder.decode({ type: "output", stream: "stdout", data: bytes, offset: 5 })).toEqual([
    { stream: "stdout", data: "/wDD", offset: 5, encoding: "base64" },
  ]);
  const [said] = decoder.decode({ type: "exit", exit: { ...exit, reason: "timeout" } });
  expect(said).toMatchObject({ stream: "stderr", offset: 8, encoding: "base64", notice: true });
});

test("a gap is told once, before what follows it, also when that has to wait for the rest of a character", () => {
  const euro = Buffer.from("€");
  const at = (offset: number, data: Buffer, lostBytes?: number) => ({
    type: "output" as const,
    stream: "stdout" as const,
    data,
    offset,
    ...(lostBytes === undefined ? {} : { lostBytes }),
  });
  const decoder = new OutputDecoder();
  expect(decoder.decode(at(10, euro.subarray(0, 1), 10))).toEqual([]);
  expect(decoder.decode(at(11, euro.subarray(1)))).toEqual([
    { stream: "stdout", data: "€", offset: 10, lostBytes: 10 },
  ]);
  expect(decoder.decode(at(20, Buffer.from("a"), 7))).toEqual([
    { stream: "stdout", data: "a", offset: 20, lostBytes: 7 },
  ]);
  expect(decoder.decode({ type: "exit", exit, lostBytes: 5 })).toEqual([
    { stream: "exit", exit, lostBytes: 5 },
  ]);
  const base64 = new OutputDecoder("base64");
  expect(base64.decode(at(3, Buffer.from("a"), 3))).toEqual([
    { stream: "stdout", data: "YQ==", offset: 3, encoding: "base64", lostBytes: 3 },
  ]);
});

test("a reader that goes on behind a line of the other stream gets every byte in base64, and in text half a character", () => {
  const output = (stream: "stdout" | "stderr", bytes: number[] | string, offset: number): ExecEvent => ({
    type: "output",
    stream,
    data: Buffer.from(bytes as string),
    offset,
  });
  const before = [output("stdout", [0xc3], 0), output("stderr", "progress\n", 1)];
  const after = [output("stdout", [0xa4], 10)];
  const read = (encoding: "utf8" | "base64", events: ExecEvent[]) => {
    const decoder = new OutputDecoder(encoding);
    const pieces = events.flatMap((event) => decoder.decode(event));
    return pieces.flatMap((piece) => (piece.stream === "stdout" ? [piece.data] : []));
  };
  expect(read("utf8", [...before, ...after])).toEqual(["ä"]);
  // docs/api/exec.md says so: what stdout began is told to nobody before it ends, and `from` is one for both streams.
  expect([...read("utf8", before), ...read("utf8", after)]).toEqual(["\ufffd"]);
  const resumed = [...read("base64", before), ...read("base64", after)];
  expect(Buffer.concat(resumed.map((data) => Buffer.from(data, "base64"))).toString()).toBe("ä");
});
