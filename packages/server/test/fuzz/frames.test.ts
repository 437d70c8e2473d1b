import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { ProviderError } from "../../src/ports/errors.ts";
import { FrameDecoder, maxDataBytes } from "../../src/providers/agent/frames.ts";
import { fuzzSeeds, Mutations } from "./mutations.ts";

const fixtures = JSON.parse(
  readFileSync(new URL("../../../../agent/fixtures/frames.json", import.meta.url), "utf8"),
) as { frames: { hex: string }[] };
const each = fixtures.frames.map(({ hex }) => Buffer.from(hex, "hex"));
const samples = [...each, Buffer.concat(each), Buffer.concat([...each].reverse())];

/** Offsets from 2^53 on are no exact numbers: a command would have to write nine petabytes. */
const inexact = (offset: number) => offset + maxDataBytes > Number.MAX_SAFE_INTEGER;

/** @returns every control frame and, for each run of raw ones, its bytes and first offset. */
function decoding(parts: Iterable<Buffer>): unknown {
  const seen: unknown[] = [];
  let raw: { kind: number; offset: number; bytes: Buffer } | undefined;
  const flush = () => {
    if (raw !== undefined) seen.push([raw.kind, raw.offset, raw.bytes.toString("hex")]);
    raw = undefined;
  };
  const decoder = new FrameDecoder({
    onControl: (kind, payload) => {
      flush();
      seen.push([kind, payload.toString("hex")]);
    },
    onRaw: (kind, bytes, offset) => {
      expect(bytes.length).toBeLessThanOrEqual(maxDataBytes);
      if (
        raw?.kind === kind &&
        (kind === 0x10 || inexact(offset) || raw.offset + raw.bytes.length === offset)
      )
        raw.bytes = Buffer.concat([raw.bytes, bytes]);
      else {
        flush();
        raw = { kind, offset, bytes: Buffer.from(bytes) };
      }
    },
  });
  try {
    for (const part of parts) decoder.push(part);
  } catch (error) {
    if (!(error instanceof ProviderError)) throw error;
    flush();
    return { seen, refused: error.message };
  }
  flush();
  return { seen };
}

test("a damaged stream of frames is decoded or refused, the same however it arrives in pieces", () => {
  for (const seed of fuzzSeeds(5_000)) {
    const mutations = new Mutations(seed);
    const bytes = mutations.damaged(samples);
    expect(decoding(mutations.pieces(bytes)), `seed ${seed}`).toEqual(decoding([bytes]));
  }
}, 120_000);
