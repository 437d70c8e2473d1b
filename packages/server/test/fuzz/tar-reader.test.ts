import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { readTar } from "../../src/platform/tar/tar-reader.ts";
import { BadRequest } from "../../src/ports/errors.ts";
import { fuzzSeeds, Mutations } from "./mutations.ts";

const folder = new URL("../../../../agent/fuzz/corpus/tars/", import.meta.url);
const samples = readdirSync(folder).map((name) => readFileSync(new URL(name, folder)));

/** @returns what the reader made of the archive; `refused` where it said no. */
async function reading(source: AsyncIterable<Uint8Array>, size: number): Promise<unknown> {
  const members: unknown[] = [];
  let bodies = 0;
  try {
    for await (const { header, body } of readTar(source)) {
      const hash = createHash("sha1");
      for await (const part of body()) {
        bodies += part.length;
        hash.update(part);
      }
      members.push([header, hash.digest("hex")]);
      expect(bodies).toBeLessThanOrEqual(size);
      expect(members.length).toBeLessThanOrEqual(size / 512);
    }
  } catch (error) {
    if (!(error instanceof BadRequest)) throw error;
    return { members, refused: error.message };
  }
  return { members };
}

async function* chunks(parts: Iterable<Buffer>): AsyncGenerator<Buffer> {
  yield* parts;
}

test("a damaged archive is read or refused, the same however it arrives in pieces", async () => {
  let runs = 0;
  let refused = 0;
  for (const seed of fuzzSeeds(3_000)) {
    runs += 1;
    const mutations = new Mutations(seed);
    const tar = mutations.withChecksums(mutations.damaged(samples));
    const whole = await reading(chunks([tar]), tar.length);
    const cut = await reading(chunks(mutations.pieces(tar)), tar.length);
    expect(cut, `seed ${seed}`).toEqual(whole);
    if (typeof whole === "object" && whole !== null && "refused" in whole) refused += 1;
  }
  // Both ways are taken, or the damage is of the wrong kind.
  expect(refused).toBeGreaterThan(runs / 10);
  expect(refused).toBeLessThan(runs * 0.95);
}, 120_000);
