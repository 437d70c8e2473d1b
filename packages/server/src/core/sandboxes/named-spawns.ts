import { CallerGone } from "../../platform/deadline.ts";
import { ToldInTurns } from "../../platform/told-in-turns.ts";
import { type Clock, ResourceLimit } from "../../ports/index.ts";
import { NameTaken } from "../scheduling/admission.ts";
import { SpawnLine } from "./spawn-line.ts";

/** What those are told that wait for the spawn of their name: to look again, or to spawn in their turn. */
type Told = "look again" | { lead: { waitedInQueue: boolean } };

/**
 * Of the callers that want a sandbox of one name of one owner, one spawns it, and takes one place in the spawn queue; the
 * others wait for what it comes to. When it fails the next leads, in the order they came. Names are free of each other.
 */
export class NamedSpawns {
  readonly #clock: Pick<Clock, "monotonicMs">;
  /** Of each name that is being spawned, those that wait. */
  readonly #lines = new Map<string, SpawnLine<Told>>();
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
    if (line === undefined) this.#lines.set(key, new SpawnLine());
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
  async #join(line: SpawnLine<Told>, name: string, signal: AbortSignal): Promise<number | undefined> {
    const sinceMs = this.#clock.monotonicMs();
    const told = await line.join({ signal, callers: `calls wait for the sandbox named "${name}"` });
    if (told === "look again") return undefined;
    return told.lead.waitedInQueue ? this.#clock.monotonicMs() - sinceMs : 0;
  }

  /** The name has its sandbox. */
  #leave(key: string): void {
    const line = this.#lines.get(key);
    this.#lines.delete(key);
    this.#turns.tell(line?.tellings("look again") ?? []);
  }

  /** @param options.waitedInQueue what the next has waited counts as its own time in the queue: places are not waited for twice. */
  #passOn(key: string, { waitedInQueue }: { waitedInQueue: boolean }): void {
    if (this.#lines.get(key)?.tellFirst({ lead: { waitedInQueue } }) !== true) this.#lines.delete(key);
  }
}
