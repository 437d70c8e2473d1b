/** A piece of a command's output. Offsets count the bytes of both streams. */
export interface JournalChunk {
  stream: "stdout" | "stderr";
  data: Buffer;
  offset: number;
}

/** Reads a journal from an offset on. Disposing it frees what it holds back. */
export interface JournalReader extends Disposable {
  /** @returns the next chunk, or undefined when the journal has ended or the reader was disposed. */
  next(): Promise<JournalChunk | undefined>;
  /** Like `next`, without waiting: undefined when nothing more is kept now. */
  take(): JournalChunk | undefined;
}

const mergedBytes = 4_096;

interface ReaderState {
  cursor: number;
  lossless: boolean;
  disposed: boolean;
}

/**
 * The bounded output of one command: the last `ringBytes` are kept for later readers. Bytes that a lossless reader has
 * not read yet are kept beyond that, and `append` then resolves only when it has caught up, which slows the command.
 */
export class Journal {
  readonly #ringBytes: number;
  #chunks: JournalChunk[] = [];
  #firstOffset = 0;
  #total = 0;
  #ended = false;
  readonly #readers = new Set<ReaderState>();
  #changed = Promise.withResolvers<void>();

  constructor(options: { ringBytes: number }) {
    this.#ringBytes = options.ringBytes;
  }

  get totalBytes(): number {
    return this.#total;
  }
  get firstOffset(): number {
    return this.#firstOffset;
  }

  /** Resolves when every lossless reader is within the ring again, or nobody reads any more. */
  async append(stream: "stdout" | "stderr", data: Buffer): Promise<void> {
    if (data.length === 0 || this.#ended) return;
    const last = this.#chunks.at(-1);
    // A line at a time would cost far more in bookkeeping than in bytes.
    if (last?.stream === stream && last.data.length + data.length <= mergedBytes)
      this.#chunks[this.#chunks.length - 1] = { ...last, data: Buffer.concat([last.data, data]) };
    else this.#chunks.push({ stream, data, offset: this.#total });
    this.#total += data.length;
    this.#trim();
    this.#notify();
    while (!this.#ended && this.#total - this.#firstOffset > this.#ringBytes) await this.#changed.promise;
  }

  get keptBytes(): number {
    return this.#total - this.#firstOffset;
  }

  /** Lets go of everything kept, unless somebody is reading it. */
  forget(): void {
    if (this.#readers.size > 0) return;
    this.#chunks = [];
    this.#firstOffset = this.#total;
  }

  end(): void {
    this.#ended = true;
    this.#notify();
  }

  /** Starts at `from`, at the oldest byte kept when that is gone, at the end when it lies beyond. */
  reader(options: { from: number; lossless: boolean }): JournalReader {
    const state: ReaderState = {
      cursor: Math.min(Math.max(options.from, this.#firstOffset), this.#total),
      lossless: options.lossless,
      disposed: false,
    };
    this.#readers.add(state);
    const take = () => (state.disposed ? undefined : this.#take(state));
    return {
      take,
      next: async () => {
        for (;;) {
          const chunk = take();
          if (chunk !== undefined) return chunk;
          if (state.disposed || this.#ended) return undefined;
          await this.#changed.promise;
        }
      },
      [Symbol.dispose]: () => {
        state.disposed = true;
        this.#readers.delete(state);
        this.#trim();
        this.#notify();
      },
    };
  }

  #take(state: ReaderState): JournalChunk | undefined {
    if (state.cursor < this.#firstOffset) state.cursor = this.#firstOffset;
    if (state.cursor >= this.#total) return undefined;
    const chunk = this.#chunks[this.#indexOf(state.cursor)];
    if (chunk === undefined) return undefined;
    const skip = state.cursor - chunk.offset;
    const rest = skip === 0 ? chunk.data : chunk.data.subarray(skip);
    const offset = state.cursor;
    state.cursor += rest.length;
    if (state.lossless && this.#total - this.#firstOffset > this.#ringBytes) {
      this.#trim();
      this.#notify();
    }
    return { stream: chunk.stream, data: rest, offset };
  }

  /** Index of the chunk that holds `offset`, by bisection. */
  #indexOf(offset: number): number {
    let low = 0;
    let high = this.#chunks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.#chunks[middle]?.offset ?? 0) <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  #trim(): void {
    let keepFrom = this.#total - this.#ringBytes;
    for (const reader of this.#readers)
      if (reader.lossless && reader.cursor < keepFrom) keepFrom = reader.cursor;
    if (keepFrom <= this.#firstOffset) return;
    const index = this.#indexOf(keepFrom);
    const first = this.#chunks[index];
    this.#chunks = this.#chunks.slice(index);
    if (first !== undefined && first.offset < keepFrom)
      this.#chunks[0] = {
        stream: first.stream,
        data: first.data.subarray(keepFrom - first.offset),
        offset: keepFrom,
      };
    this.#firstOffset = keepFrom;
  }

  #notify(): void {
    const { resolve } = this.#changed;
    this.#changed = Promise.withResolvers<void>();
    resolve();
  }
}
