/** Counts of what was observed up to each bound, none of it kept. Bounds rise; what is above the last one counts in the total alone. */
export class Histogram {
  readonly bounds: readonly number[];
  readonly #counts: number[];
  #count = 0;
  #sum = 0;

  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.#counts = bounds.map(() => 0);
  }

  get count(): number {
    return this.#count;
  }

  get sum(): number {
    return this.#sum;
  }

  observe(value: number): void {
    this.#count++;
    this.#sum += value;
    const index = this.bounds.findIndex((bound) => value <= bound);
    if (index >= 0) this.#counts[index] = (this.#counts[index] ?? 0) + 1;
  }

  /** How many were at most each bound. */
  upTo(): { bound: number; count: number }[] {
    let count = 0;
    return this.bounds.map((bound, index) => {
      count += this.#counts[index] ?? 0;
      return { bound, count };
    });
  }
}
