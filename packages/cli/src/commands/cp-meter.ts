import { Transform } from "node:stream";
import type { Progress } from "../terminal/progress.ts";
import { byteSize } from "../terminal/text.ts";

/** Counts what passes and tells the progress line: size, share of the total, rate. */
export class Meter extends Transform {
  bytes = 0;
  readonly #progress: Progress;
  readonly #totalBytes: number | undefined;

  constructor(progress: Progress, totalBytes?: number) {
    super();
    this.#progress = progress;
    this.#totalBytes = totalBytes;
  }

  override _transform(
    chunk: Buffer,
    _encoding: string,
    callback: (error: null, chunk: Buffer) => void,
  ): void {
    this.bytes += chunk.length;
    this.#progress.update(this.summary());
    callback(null, chunk);
  }

  summary(): string {
    const seconds = this.#progress.elapsedMs / 1_000;
    const share = this.#totalBytes ? `, ${Math.floor((this.bytes / this.#totalBytes) * 100)} %` : "";
    return `${byteSize(this.bytes)}${share}, ${byteSize(this.bytes / Math.max(seconds, 0.001))}/s`;
  }
}
