import { elapsed } from "./text.ts";

const frames = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
const refreshMs = 100;
/** A step that ends sooner shows no spinner. */
const quietMs = 300;

/**
 * One slow step on standard error: on a terminal a line that updates while it lasts, elsewhere one line at its end.
 * Disposing without `done` wipes the line.
 */
export class Progress implements Disposable {
  readonly #stream: NodeJS.WriteStream;
  readonly #live: boolean;
  readonly #startedAt = performance.now();
  readonly #timer: NodeJS.Timeout | undefined;
  #label: string;
  #detail = "";
  #frame = 0;
  #shown = false;

  constructor(label: string, options: { stream?: NodeJS.WriteStream; quiet?: boolean } = {}) {
    this.#stream = options.stream ?? process.stderr;
    this.#label = label;
    this.#live = this.#stream.isTTY === true && options.quiet !== true;
    if (this.#live) {
      this.#timer = setInterval(() => this.#draw(), refreshMs);
      this.#timer.unref();
    }
  }

  get elapsedMs(): number {
    return performance.now() - this.#startedAt;
  }

  /** What the step is at: `12.0 MiB, 40.1 MiB/s`. */
  update(detail: string): void {
    this.#detail = detail;
  }

  /** Ends the step with a line that stays. */
  done(text: string): void {
    this[Symbol.dispose]();
    this.#stream.write(`${text}\n`);
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
    if (this.#shown) this.#stream.write("\r\x1b[2K");
    this.#shown = false;
  }

  #draw(): void {
    if (this.elapsedMs < quietMs) return;
    this.#frame = (this.#frame + 1) % frames.length;
    const detail = this.#detail === "" ? "" : `  ${this.#detail}`;
    const line = `${frames[this.#frame]} ${this.#label}  ${elapsed(this.elapsedMs)}${detail}`;
    this.#stream.write(`\r\x1b[2K${line.slice(0, Math.max(20, (this.#stream.columns || 80) - 1))}`);
    this.#shown = true;
  }
}
