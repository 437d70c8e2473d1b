import { CallerGone } from "../../platform/deadline.ts";
import { ToldInTurns } from "../../platform/told-in-turns.ts";
import { type Clock, ResourceLimit, Unavailable } from "../../ports/index.ts";
import { NameTaken } from "../scheduling/admission.ts";

/** How many may wait for what one spawn comes to. */
export const mostJoined = 1_000;
const joinRetryS = 1;

/** One that waits for the spawn of its name: told to look again, or to spawn in its turn. */
interface Joined {
  readonly sinceMs: number;
  readonly lookAgain: () => void;
  readonly lead: (waitedMs: number) => void;
}

/**
 * Of the callers that want a sandbox of one name of one owner, one spawns it, and takes one place in the spawn queue; the
 * others wait for what it comes to. When it fails the next leads, in the order they came. Names are free of each other.
 */
export class NamedSpawns {
  readonly #clock: Pick<Clock, "monotonicMs">;
  /** Of each name that is being spawned, those that wait. */
  readonly #lines = new Map<string, Set<Joined>>();
  readonly #turns = new ToldInTurns();

  constructor({ clock }: { clock: Pick<Clock, "monotonicMs"> }) {
    this.#clock = clock;
  }

  /**
   * @param options.spawn is told how much of the time in the spawn queue was waited for already, behind another.
   * @returns what `spawn` gave; undefined when another has spawned: it is time to look again.
   * @throws what `spawn` throws; Unavailable when too many wait; the signal's reason.
   */
  async spawn<T>(
    wanted: { ownerId: string; name: string },
    options: { signal: AbortSignal; spawn: (waitedMs: number) => Promise<T> },
  ): Promise<T | undefined> {
    const { signal, spawn } = options;
    const key = `${wanted.ownerId}\0${wanted.name}`;
    const line = this.#lines.get(key);
    let waitedMs = 0;
    if (line === undefined) this.#lines.set(key, new Set());
    else {
      const turn = await this.#join(line, wanted.name, signal);
      if (turn === undefined) return undefined;
      waitedMs = turn;
    }
    try {
      signal.throwIfAborted();
      const made = await spawn(waitedMs);
      this.#leave(key);
      return made;
    } catch (error) {
      if (error instanceof NameTaken) this.#leave(key);
      else
        this.#passOn(key, { waitedInQueue: error instanceof ResourceLimit || error instanceof CallerGone });
      throw error;
    }
  }

  /** @returns how long it waited when it is to lead; undefined when it is to look again. */
  #join(line: Set<Joined>, name: string, signal: AbortSignal): Promise<number | undefined> {
    if (line.size >= mostJoined) {
      const message = `${mostJoined} calls wait for the sandbox named "${name}" already; try again in a moment`;
      throw new Unavailable(message, { retryAfterS: joinRetryS });
    }
    return new Promise((resolve, reject) => {
      const settle = () => {
        line.delete(joined);
        signal.removeEventListener("abort", onAbort);
      };
      const joined: Joined = {
        sinceMs: this.#clock.monotonicMs(),
        lookAgain: () => {
          settle();
          resolve(undefined);
        },
        lead: (waitedMs) => {
          settle();
          resolve(waitedMs);
        },
      };
      const onAbort = () => {
        settle();
        reject(signal.reason);
      };
      if (signal.aborted) {
        reject(signal.reason);
        return;
      }
      signal.addEventListener("abort", onAbort, { once: true });
      line.add(joined);
    });
  }

  /** The name has its sandbox. */
  #leave(key: string): void {
    const line = this.#lines.get(key);
    this.#lines.delete(key);
    this.#turns.tell([...(line ?? [])].map(({ lookAgain }) => lookAgain));
  }

  /** @param options.waitedInQueue what the next has waited counts as its own time in the queue: places are not waited for twice. */
  #passOn(key: string, { waitedInQueue }: { waitedInQueue: boolean }): void {
    const next = this.#lines.get(key)?.values().next().value;
    if (next === undefined) this.#lines.delete(key);
    else next.lead(waitedInQueue ? this.#clock.monotonicMs() - next.sinceMs : 0);
  }
}
