import { ResourceLimit } from "../../ports/errors.ts";

/** Beyond this a writer that does not wait its turn is refused. */
const waitingAtMost = 16 * 1_048_576;
const newline = 0x0a;

/** Standard input on its way to a command: open until `close`. Who runs the command takes it with one of the three readers. */
export class ExecInput {
  #waiting: Buffer[] = [];
  #waitingBytes = 0;
  #open: boolean;
  readonly #holdsBytes: number;
  #changed = Promise.withResolvers<void>();

  /** @param options.holdsBytes what may wait without holding its writer back. */
  constructor(options: { open: boolean; holdsBytes: number }) {
    this.#open = options.open;
    this.#holdsBytes = options.holdsBytes;
  }

  get isOpen(): boolean {
    return this.#open;
  }

  /**
   * Takes the data at once. After `close` it is dropped.
   * @returns resolves when little enough of it waits for the command.
   * @throws ResourceLimit at once, with nothing taken, when too much waits already.
   */
  write(data: Uint8Array): Promise<void> {
    if (!this.#open || data.length === 0) return Promise.resolve();
    if (this.#waitingBytes + data.length > waitingAtMost)
      throw new ResourceLimit(
        `at most ${waitingAtMost} bytes of standard input wait for a command; write on when it has read some`,
      );
    this.#waiting.push(Buffer.from(data));
    this.#waitingBytes += data.length;
    this.#notify();
    return this.#room();
  }

  async #room(): Promise<void> {
    while (this.#open && this.#waitingBytes > this.#holdsBytes) await this.#changed.promise;
  }

  close(): void {
    this.#open = false;
    this.#notify();
  }

  /** Nobody reads it any more: what waits is let go of, and its writers too. */
  drop(): void {
    this.#waiting = [];
    this.#waitingBytes = 0;
    this.close();
  }

  /** Waits for data. @returns at most `atMost` bytes of what waits; undefined at the end. */
  async next(atMost: number): Promise<Buffer | undefined> {
    while (this.#waitingBytes === 0) {
      if (!this.#open) return undefined;
      await this.#changed.promise;
    }
    return this.#take(Math.min(atMost, this.#waitingBytes));
  }

  /** Waits for a whole line, or the end: then what is left. */
  async line(): Promise<Buffer> {
    for (;;) {
      const end = this.#joined().indexOf(newline);
      if (end >= 0) return this.#take(end + 1);
      if (!this.#open) return this.#take(this.#waitingBytes);
      await this.#changed.promise;
    }
  }

  /** Waits for the end. @returns all that is left. */
  async rest(): Promise<Buffer> {
    while (this.#open) await this.#changed.promise;
    return this.#take(this.#waitingBytes);
  }

  #joined(): Buffer {
    const [first, ...more] = this.#waiting;
    if (first === undefined) return Buffer.alloc(0);
    if (more.length === 0) return first;
    const all = Buffer.concat(this.#waiting);
    this.#waiting = [all];
    return all;
  }

  #take(length: number): Buffer {
    const all = this.#joined();
    const taken = all.subarray(0, length);
    const left = all.subarray(length);
    this.#waiting = left.length === 0 ? [] : [left];
    this.#waitingBytes = left.length;
    this.#notify();
    return taken;
  }

  #notify(): void {
    const { resolve } = this.#changed;
    this.#changed = Promise.withResolvers<void>();
    resolve();
  }
}
