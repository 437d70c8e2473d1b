/** How many entries the maps have in all that count in it. */
export interface MapSum {
  total: number;
}

/** A map whose entries count in a sum over several, until it leaves that: the sum is read without looking through the maps. */
export class SummedMap<K, V> extends Map<K, V> {
  #sum: MapSum | undefined;

  constructor(sum: MapSum) {
    super();
    this.#sum = sum;
  }

  override set(key: K, value: V): this {
    const before = this.size;
    super.set(key, value);
    this.#count(this.size - before);
    return this;
  }

  override delete(key: K): boolean {
    const was = super.delete(key);
    if (was) this.#count(-1);
    return was;
  }

  override clear(): void {
    this.#count(-this.size);
    super.clear();
  }

  /** What it holds, and what it is given later, counts no more. */
  leaveSum(): void {
    this.#count(-this.size);
    this.#sum = undefined;
  }

  #count(by: number): void {
    if (this.#sum !== undefined) this.#sum.total += by;
  }
}
