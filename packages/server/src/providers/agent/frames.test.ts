import fc from "fast-check";
import { expect, it } from "vitest";
import { encodeHeader, encodeJsonFrame, FrameDecoder, frameKinds, maxControlBytes } from "./frames.ts";

type Seen = { kind: number; text: string; offset: number };

/** Decodes `stream` cut at `cuts`; raw parts that follow each other are joined again. */
function decode(stream: Buffer, cuts: readonly number[]): Seen[] {
  const seen: Seen[] = [];
  const decoder = new FrameDecoder({
    onControl: (kind, payload) => seen.push({ kind, text: payload.toString("latin1"), offset: -1 }),
    onRaw: (kind, bytes, offset) => {
      const last = seen.at(-1);
      const text = bytes.toString("latin1");
      const joins =
        last?.kind === kind && (kind === frameKinds.data || last.offset + last.text.length === offset);
      if (last !== undefined && joins) last.text += text;
      else seen.push({ kind, text, offset });
    },
  });
  let from = 0;
  for (const cut of [...cuts, stream.length]) {
    decoder.push(stream.subarray(from, cut));
    from = cut;
  }
  return seen;
}

function output(kind: number, offset: number, text: string): Buffer {
  const place = Buffer.alloc(8);
  place.writeBigUInt64BE(BigInt(offset));
  return Buffer.concat([encodeHeader(kind, 8 + text.length), place, Buffer.from(text, "latin1")]);
}

it("frames are the same however the transport cuts them", () => {
  const stream = Buffer.concat([
    encodeJsonFrame(frameKinds.welcome, { version: 1 }),
    encodeJsonFrame(frameKinds.reply, { text: "ł".repeat(50) }),
    output(frameKinds.stdout, 0, "hello"),
    output(frameKinds.stderr, 2 ** 40, "oops"),
    output(frameKinds.stdout, 5, ""),
    encodeHeader(frameKinds.data, 3),
    Buffer.from("abc"),
    encodeHeader(frameKinds.eof, 0),
    encodeHeader(frameKinds.end, 0),
  ]);
  const whole = decode(stream, []);
  expect(whole.map((frame) => frame.kind)).toEqual([0x02, 0x04, 0x12, 0x13, 0x10, 0x11, 0x07]);
  expect(whole[3]).toMatchObject({ offset: 2 ** 40, text: "oops" });
  fc.assert(
    fc.property(fc.array(fc.nat(stream.length), { maxLength: 40 }), (cuts) => {
      expect(
        decode(
          stream,
          cuts.sort((a, b) => a - b),
        ),
      ).toEqual(whole);
    }),
  );
  expect(
    decode(
      stream,
      Array.from({ length: stream.length }, (_, index) => index),
    ),
  ).toEqual(whole);
});

it.each([
  ["an unknown kind", encodeHeader(0x33, 0)],
  ["a reply above 4 MiB", encodeHeader(frameKinds.reply, maxControlBytes + 1)],
  ["data above 1 MiB", encodeHeader(frameKinds.data, 1024 * 1024 + 1)],
  ["output without an offset", encodeHeader(frameKinds.stdout, 7)],
  ["an end with a payload", encodeHeader(frameKinds.end, 1)],
])("%s is refused", (_what, frame) => {
  expect(() => decode(frame, [])).toThrow(/agent sent a frame/);
});

it("a request above 4 MiB is refused before it is sent", () => {
  expect(() => encodeJsonFrame(frameKinds.request, { text: "x".repeat(maxControlBytes) })).toThrow(/4194304/);
});
