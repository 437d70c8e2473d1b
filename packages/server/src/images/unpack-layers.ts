import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { BadRequest } from "../ports/errors.ts";
import { decompressed } from "./decompress.ts";
import { writeLayer } from "./layer-writer.ts";
import { UnpackBudget, type UnpackLimits } from "./unpack-budget.ts";

/** What is unpacked: the layers of an image, or a tar of a root file system that comes on standard input. */
export type UnpackJob = { root: string; limits: UnpackLimits } & (
  | { kind: "layers"; layers: readonly { file: string; diffId: string }[] }
  | { kind: "tar" }
);

export interface Unpacked {
  /** Of a tar, uncompressed. */
  digest?: string;
  /** Devices, FIFOs and sockets that were left out. */
  skipped: number;
}

interface UnpackOptions {
  signal: AbortSignal;
  onBytes: (bytes: number) => void;
}

export async function unpack(
  job: UnpackJob,
  source: AsyncIterable<Uint8Array>,
  options: UnpackOptions,
): Promise<Unpacked> {
  const budget = new UnpackBudget({ limits: job.limits, directory: job.root });
  const write = { root: job.root, budget, ...options };
  const length = new LengthBudget(job.limits);
  if (job.kind === "tar") {
    const hash = createHash("sha256");
    const tar = hashing(decompressed(source, options), hash, length);
    const { skipped } = await writeLayer(tar, { ...write, whiteouts: false });
    return { digest: `sha256:${hash.digest("hex")}`, skipped };
  }
  let skipped = 0;
  // Applied in order, each checked against what the image's configuration says of it.
  for (const layer of job.layers) {
    const hash = createHash("sha256");
    const tar = decompressed(createReadStream(layer.file), options);
    const result = await writeLayer(hashing(tar, hash, length), {
      ...write,
      whiteouts: true,
    });
    skipped += result.skipped;
    const found = `sha256:${hash.digest("hex")}`;
    if (found !== layer.diffId)
      throw new BadRequest(
        `a layer of the archive is not what its image says: ${found} in place of ${layer.diffId}`,
      );
  }
  return { skipped };
}

/**
 * Counts all that is read of an image, headers included, over all its layers: an image may name one blob any number of
 * times. What is within the limits has contents, headers, and a long name for each entry.
 */
class LengthBudget {
  #left: number;

  constructor({ maxUnpackedBytes, maxEntries }: UnpackLimits) {
    this.#left = maxUnpackedBytes + maxEntries * 4_096 + 1_048_576;
  }

  /** @throws BadRequest for a stream that is longer than its contents can be. */
  take(bytes: number): void {
    this.#left -= bytes;
    if (this.#left < 0) throw new BadRequest("the archive is longer than what images may unpack to");
  }
}

/** Passes chunks on, hashing them. */
async function* hashing(
  source: AsyncIterable<Uint8Array>,
  hash: { update(data: Uint8Array): unknown },
  length: LengthBudget,
): AsyncGenerator<Uint8Array> {
  for await (const chunk of source) {
    length.take(chunk.length);
    hash.update(chunk);
    yield chunk;
  }
}
