import type { OpenFiles } from "./open-files.ts";

/** Looks in a row at which a socket was nowhere open: one that is made or closed meanwhile is so at one of them. */
const leastLooks = 3;
/** How many sockets that are open may be expected among those that no look by chance has met. */
const mostMissed = 0.001;

/** The Unix sockets of one sandbox that no descriptor was met for, look after look. */
export class UnmetSockets {
  /** Undefined where they were too many to be told. */
  #unmet: ReadonlySet<number> | undefined = new Set();
  #looks = 0;
  /** How many there were at all. */
  #most = 0;
  /** The chance that one which is open was met at none of the looks. */
  #missed = 1;

  /**
   * @param open seen before the sockets.
   * @param sockets by their inodes; undefined: too many to be told.
   */
  look({ sample, each, refused }: OpenFiles, sockets: readonly number[] | undefined): void {
    // Whoever may not be looked at may have them open.
    if (refused) {
      this.#looks = 0;
      return;
    }
    if (sockets === undefined) {
      this.#unmet = undefined;
      this.#looks++;
      this.#missed = 0;
      return;
    }
    const met = new Set(sample.filter(({ kind }) => kind === "socket").map(({ inode }) => inode));
    const now = sockets.filter((inode) => !met.has(inode));
    const still = now.filter((inode) => this.#unmet?.has(inode) ?? true);
    // Of those seen by chance nobody knows how many looks have missed one, where a look before told none.
    const isFirst = this.#looks === 0 || still.length === 0 || (this.#unmet === undefined && each > 1);
    this.#unmet = new Set(isFirst ? now : still);
    if (now.length === 0) this.#looks = 0;
    else this.#looks = isFirst ? 1 : this.#looks + 1;
    this.#most = Math.max(this.#most, sockets.length);
    this.#missed = (isFirst ? 1 : this.#missed) * (1 - 1 / Math.max(1, each));
  }

  /** Whether some are nowhere open: where what is open is looked at by chance, only after as many looks as would have met all. */
  get areNowhere(): boolean {
    return this.#looks >= leastLooks && this.#most * this.#missed < mostMissed;
  }
}
