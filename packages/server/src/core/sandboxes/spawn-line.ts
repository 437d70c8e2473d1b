import { Unavailable } from "../../ports/index.ts";

/** How many may wait for what one spawn comes to. */
export const mostJoined = 1_000;
const retryAfterS = 1;

/** Those that wait for what one spawn comes to, in the order they came. Each is told once, and is in no line then. */
export class SpawnLine<Told> {
  readonly #waiting = new Set<(told: Told) => void>();

  /**
   * @param options.callers what such callers are called, in the plural, and what they wait for.
   * @returns what it was told.
   * @throws Unavailable when too many wait; the signal's reason.
   */
  join({ signal, callers }: { signal: AbortSignal; callers: string }): Promise<Told> {
    if (this.#waiting.size >= mostJoined)
      throw new Unavailable(`${mostJoined} ${callers} already; try again in a moment`, { retryAfterS });
    return new Promise((resolve, reject) => {
      if (signal.aborted) {
        reject(signal.reason);
        return;
      }
      const settle = () => {
        this.#waiting.delete(tell);
        signal.removeEventListener("abort", onAbort);
      };
      const tell = (told: Told) => {
        settle();
        resolve(told);
      };
      const onAbort = () => {
        settle();
        reject(signal.reason);
      };
      signal.addEventListener("abort", onAbort, { once: true });
      this.#waiting.add(tell);
    });
  }

  /** @returns whether somebody waited. */
  tellFirst(told: Told): boolean {
    const [first] = this.#waiting;
    first?.(told);
    return first !== undefined;
  }

  /** @returns what tells each of those that wait; for `ToldInTurns`. */
  tellings(told: Told): (() => void)[] {
    return Array.from(this.#waiting, (tell) => () => tell(told));
  }
}
