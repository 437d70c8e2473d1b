/**
 * Damages bytes in ways that parsers stumble over, the same for the same seed. Checksums of tar headers are put right
 * again most of the time, so that damage gets past them.
 */
export class Mutations {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** @returns a whole number from 0 up to and without `bound` (mulberry32). */
  below(bound: number): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = this.#state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * bound);
  }

  pick<T>(values: readonly T[]): T {
    return values[this.below(values.length)] as T;
  }

  /** @returns a damaged copy of one of the samples. */
  damaged(samples: readonly Buffer[]): Buffer {
    let bytes: Buffer = Buffer.from(this.pick(samples));
    for (let left = 1 + this.below(4); left > 0; left -= 1) bytes = this.#damagedOnce(bytes, samples);
    return bytes;
  }

  /** @returns the bytes in pieces of differing lengths. */
  *pieces(bytes: Buffer): Generator<Buffer> {
    for (let at = 0; at < bytes.length; ) {
      const length = 1 + this.below(this.pick([1, 7, 600, 5_000]));
      yield bytes.subarray(at, at + length);
      at += length;
    }
  }

  #damagedOnce(bytes: Buffer, samples: readonly Buffer[]): Buffer {
    const at = this.below(Math.max(1, bytes.length));
    const length = 1 + this.below(this.pick([1, 12, 512]));
    switch (this.below(6)) {
      case 0:
        if (bytes.length > 0) bytes[at] = (bytes[at] ?? 0) ^ (1 << this.below(8));
        return bytes;
      case 1:
        return bytes.fill(
          this.pick([0, 0x20, 0x2f, 0x37, 0x80, 0xff]),
          at,
          Math.min(bytes.length, at + length),
        );
      case 2:
        return Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + length)]);
      case 3:
        return Buffer.concat([bytes.subarray(0, at), bytes.subarray(at, at + length), bytes.subarray(at)]);
      case 4: {
        const other = this.pick(samples);
        const from = 512 * this.below(Math.max(1, other.length / 512));
        return Buffer.concat([bytes.subarray(0, at - (at % 512)), other.subarray(from)]);
      }
      default:
        return bytes.subarray(0, at);
    }
  }

  /** Corrects the checksum of every block that could be a tar header; one in four stays as it is. */
  withChecksums(tar: Buffer): Buffer {
    if (this.below(4) === 0) return tar;
    const bytes = Buffer.from(tar);
    for (let at = 0; at + 512 <= bytes.length; at += 512) {
      if (bytes.toString("latin1", at + 257, at + 262) !== "ustar") continue;
      bytes.fill(0x20, at + 148, at + 156);
      let sum = 0;
      for (let index = at; index < at + 512; index += 1) sum += bytes[index] ?? 0;
      bytes.write(`${sum.toString(8).padStart(6, "0")}\0 `, at + 148, "latin1");
    }
    return bytes;
  }
}

/**
 * Seeds of a run: so many, or those of `ALCOVE_FUZZ_SECONDS`; `ALCOVE_FUZZ_RUNS` and `ALCOVE_FUZZ_SEED` say how many others, and
 * which is the first.
 */
export function* fuzzSeeds(otherwise: number): Generator<number> {
  const { ALCOVE_FUZZ_SEED: first, ALCOVE_FUZZ_RUNS: runs, ALCOVE_FUZZ_SECONDS: seconds } = process.env;
  const endMs = seconds === undefined ? undefined : performance.now() + Number(seconds) * 1_000;
  const count = Number(runs ?? otherwise);
  const goesOn = (done: number) => (endMs === undefined ? done < count : performance.now() < endMs);
  for (let done = 0; goesOn(done); done += 1) yield Number(first ?? 1) + done;
}
