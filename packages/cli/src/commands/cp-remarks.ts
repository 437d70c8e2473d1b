import { printableLine } from "../terminal/printable.ts";

/** How many are told; a hostile archive could bring as many as it has names. */
const maxTold = 10;

/** What is said of single files of a copy, once it is done. */
export class Remarks {
  readonly #told = new Set<string>();
  #more = 0;

  add(text: string): void {
    if (this.#told.has(text)) return;
    if (this.#told.size < maxTold) this.#told.add(text);
    else this.#more += 1;
  }

  tell(): void {
    for (const text of this.#told) process.stderr.write(`alcove: ${printableLine(text)}\n`);
    if (this.#more > 0) process.stderr.write(`alcove: and ${this.#more} more like these\n`);
  }
}
