import type { Share } from "../answers/shares.ts";

/**
 * Lets one reader at a time look at a part of the history, each in a turn of the event loop of its own, keys and
 * addresses in turn, and the owners of each: however many replays one of them has under way, others wait for one part of
 * them, and requests for one as well.
 */
export class ReplayLine {
  /** Readers that wait, by principal and owner; whose turn is next comes first. */
  readonly #waiting = new Map<string, Map<string, (() => void)[]>>();

  /** Resolves when `caller` may look at its next part. */
  async turn({ principal, owner }: Share): Promise<void> {
    await new Promise<void>((resolve) => {
      if (this.#waiting.size === 0) this.#goOn();
      const owners = this.#waiting.get(principal) ?? new Map<string, (() => void)[]>();
      const readers = owners.get(owner) ?? [];
      readers.push(resolve);
      this.#waiting.set(principal, owners.set(owner, readers));
    });
  }

  #goOn(): void {
    setImmediate(() => {
      const [principal, owners] = first(this.#waiting);
      const [owner, readers] = first(owners);
      readers.shift()?.();
      // Who was served stands last from now on.
      owners.delete(owner);
      if (readers.length > 0) owners.set(owner, readers);
      this.#waiting.delete(principal);
      if (owners.size > 0) this.#waiting.set(principal, owners);
      if (this.#waiting.size > 0) this.#goOn();
    });
  }
}

function first<V>(map: Map<string, V>): [string, V] {
  for (const entry of map) return entry;
  throw new Error("nobody waits");
}
