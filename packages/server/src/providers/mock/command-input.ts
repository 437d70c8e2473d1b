import { ResourceLimit } from "../../ports/errors.ts";

const waitingAtMost = 16 * 1_048_576;
const newline = 0x0a;

/** Standard input on its way to a simulated command: open until `close`. */
export class CommandInput {
  #waiting: Buffer = Buffer.alloc(0);
  #open: boolean;
  #changed = Promise.withResolvers<void>();

  constructor(options: { open: boolean }) {
    this.#open = options.open;
  }

  get isOpen(): boolean {
    return this.#open;
  }

  /** @throws ResourceLimit when more waits than a simulated command takes. */
  write(data: Uint8Array): void {
    if (!this.#open) return;
    if (this.#waiting.length + data.length > waitingAtMost)
      throw new ResourceLimit(
        `at most ${waitingAtMost} bytes of standard input wait for a simulated command`,
      );
    this.#waiting = Buffer.concat([this.#waiting, data]);
    this.#notify();
  }

  close(): void {
    this.#open = false;
    this.#notify();
  }

  /** Waits for a whole line, or the end: then what is left. */
  async line(): Promise<Buffer> {
    for (;;) {
      const end = this.#waiting.indexOf(newline);
      if (end >= 0) return this.#take(end + 1);
      if (!this.#open) return this.#take(this.#waiting.length);
      await this.#changed.promise;
    }
  }

  /** Waits for the end. @returns all that is left. */
  async rest(): Promise<Buffer> {
    while (this.#open) await this.#changed.promise;
    return this.#take(this.#waiting.length);
  }

  #take(length: number): Buffer {
    const taken = this.#waiting.subarray(0, length);
    this.#waiting = this.#waiting.subarray(length);
    return taken;
  }

  #notify(): void {
    const { resolve } = this.#changed;
    this.#changed = Promise.withResolvers<void>();
    resolve();
  }
}
