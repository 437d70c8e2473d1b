import { ignoreOutcome } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { CallOptions, RuntimeStats } from "../../ports/index.ts";

/**
 * What sandboxes use, each of them asked by one at a time. Everybody who wants to know while one is asked shares the next
 * answer, which is asked for after they came: a look opens half a dozen files beside a call of the agent, and a page of the list
 * is a hundred looks.
 */
export class SharedFigures {
  readonly #deadlineMs: number;
  readonly #current = new Map<string, Promise<RuntimeStats>>();
  readonly #next = new Map<string, Promise<RuntimeStats>>();

  /** @param options.deadlineMs for each look, however long those wait who share it. */
  constructor(options: { deadlineMs: number }) {
    this.#deadlineMs = options.deadlineMs;
  }

  /** @throws what `look` throws; DeadlineExceeded. */
  of(sandboxId: string, look: (options: CallOptions) => Promise<RuntimeStats>): Promise<RuntimeStats> {
    return this.#next.get(sandboxId) ?? this.#queue(sandboxId, look);
  }

  #queue(sandboxId: string, look: (options: CallOptions) => Promise<RuntimeStats>): Promise<RuntimeStats> {
    const before = this.#current.get(sandboxId)?.catch(ignoreOutcome) ?? Promise.resolve();
    const next = before.then(() => {
      this.#next.delete(sandboxId);
      const current = this.#look(look).finally(() => {
        if (this.#current.get(sandboxId) === current) this.#current.delete(sandboxId);
      });
      this.#current.set(sandboxId, current);
      return current;
    });
    this.#next.set(sandboxId, next);
    return next;
  }

  async #look(look: (options: CallOptions) => Promise<RuntimeStats>): Promise<RuntimeStats> {
    using deadline = deadlineAfter(this.#deadlineMs);
    return await look(deadline);
  }
}
