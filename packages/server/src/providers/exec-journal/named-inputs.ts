/** One view's part in a named input, until another view of that name takes over. */
export interface NamedInput {
  /** Whether the input still comes from this view. */
  readonly isCurrent: boolean;
  took(bytes: number): void;
  watch(listener: (taken: number) => void): void;
}

interface Count {
  taken: number;
  listener: ((taken: number) => void) | undefined;
}

/** How much of each named input of a simulated command was taken. */
export class NamedInputs {
  readonly #counts = new Map<string, Count>();

  taken(name: string): number {
    return this.#counts.get(name)?.taken ?? 0;
  }

  /** From now on the input of that name comes from the caller. */
  join(name: string): NamedInput {
    const own: Count = { taken: this.#counts.get(name)?.taken ?? 0, listener: undefined };
    const counts = this.#counts.set(name, own);
    return {
      get isCurrent() {
        return counts.get(name) === own;
      },
      took: (bytes) => {
        if (counts.get(name) !== own) return;
        own.taken += bytes;
        own.listener?.(own.taken);
      },
      watch: (listener) => {
        own.listener = listener;
        listener(own.taken);
      },
    };
  }
}
