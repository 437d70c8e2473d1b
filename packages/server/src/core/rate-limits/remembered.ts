/**
 * Texts that were used last: at least `atLeast` of them, and no more than twice as many. Nothing is taken out by itself: in a large
 * set whatever was taken out lately stays in the way of its like, so that one text used again and again would cost a walk each time.
 */
export class Remembered {
  readonly #atLeast: number;
  #recent = new Set<string>();
  #before: ReadonlySet<string> = new Set();

  constructor(atLeast: number) {
    this.#atLeast = atLeast;
  }

  has(text: string): boolean {
    return this.#recent.has(text) || this.#before.has(text);
  }

  use(text: string): void {
    this.#recent.add(text);
    if (this.#recent.size < this.#atLeast) return;
    this.#before = this.#recent;
    this.#recent = new Set();
  }
}
