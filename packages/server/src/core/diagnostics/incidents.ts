import { guardStops } from "../../ports/runtime-provider.ts";

/** What ended a sandbox that nobody destroyed: it itself, or a guard of its provider. */
export type EndedBy = "itself" | "disk_guard" | "memory_guard";

/** What happened since the start that nobody asked for. One number for each, all there from the start. */
export class Incidents {
  readonly #ended: Record<EndedBy, number> = { itself: 0, disk_guard: 0, memory_guard: 0 };
  #networksLost = 0;
  #recovered = 0;

  get all(): {
    readonly ended: Readonly<Record<EndedBy, number>>;
    readonly networksLost: number;
    readonly recovered: number;
  } {
    return { ended: this.#ended, networksLost: this.#networksLost, recovered: this.#recovered };
  }

  /** @param why as its provider says it. */
  sandboxEnded(why: string): void {
    this.#ended[endedBy(why)]++;
  }

  networkLost(): void {
    this.#networksLost++;
  }

  /** The database did not know it, and its runtime's record did. */
  sandboxRecovered(): void {
    this.#recovered++;
  }
}

function endedBy(why: string): EndedBy {
  if (why.includes(guardStops.disk)) return "disk_guard";
  const ofMemory = [guardStops.memory, guardStops.kernelMemory].some((stop) => why.includes(stop));
  return ofMemory ? "memory_guard" : "itself";
}
