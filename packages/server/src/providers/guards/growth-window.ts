import type { RuntimeId } from "../../ports/index.ts";

/** Older growth says little about who writes now. */
const longestMs = 30_000;
/** What grew has to be this part of what was lost at least; else somebody whom nobody sees fills the disk. */
const explainingPart = 0.5;
/** MB or files: what comes and goes by itself. */
const leastGrowth = 1;

/** What one look saw; MB throughout, or numbers of files throughout. */
export interface Seen {
  unit: "mb" | "inodes";
  /** Infinity: not seen. */
  free: number;
  running: readonly RuntimeId[];
  sizes: ReadonlyMap<RuntimeId, number>;
}

/**
 * Who grew while free space was lost. The window begins with the first look, anew with each that sees more free than its
 * beginning did, and when it is old.
 */
export class GrowthWindow {
  #start: (Omit<Seen, "sizes"> & { sizes: Map<RuntimeId, number>; atMs: number }) | undefined;

  reset(): void {
    this.#start = undefined;
  }

  /**
   * @returns who grew since the window began, most first, when that explains what was lost; undefined: this look began
   * the window, so that nothing is known yet.
   */
  add(seen: Seen): readonly RuntimeId[] | undefined {
    const nowMs = performance.now();
    const start = this.#start;
    if (start === undefined || start.unit !== seen.unit) {
      this.#begin(seen, nowMs);
      return undefined;
    }
    const growth = new Map<RuntimeId, number>();
    for (const [runtimeId, size] of seen.sizes) {
      // Who came later has written all of it since; of who was there and is measured only now, nothing is known.
      if (!start.sizes.has(runtimeId))
        start.sizes.set(runtimeId, start.running.includes(runtimeId) ? size : 0);
      const grown = size - (start.sizes.get(runtimeId) ?? 0);
      if (grown >= leastGrowth) growth.set(runtimeId, grown);
    }
    const lost = start.free - seen.free;
    if (lost <= 0 || nowMs - start.atMs > longestMs) this.#begin(seen, nowMs);
    const explained = [...growth.values()].reduce((all, grown) => all + grown, 0);
    if (lost <= 0 || explained < lost * explainingPart) return [];
    return [...growth].sort(([, a], [, b]) => b - a).map(([runtimeId]) => runtimeId);
  }

  #begin(seen: Seen, atMs: number): void {
    this.#start = { ...seen, sizes: new Map(seen.sizes), atMs };
  }
}
