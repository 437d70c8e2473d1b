import { deadlineAfter } from "../../platform/deadline.ts";
import { SharedNext } from "../../platform/shared-next.ts";
import type { CallOptions, RuntimeStats } from "../../ports/index.ts";

/**
 * What sandboxes use, each of them asked by one at a time. Everybody who wants to know while one is asked shares the next
 * answer, which is asked for after they came: a look opens half a dozen files beside a call of the agent, and a page of the list
 * is a hundred looks.
 */
export class SharedFigures {
  readonly #deadlineMs: number;
  readonly #looks = new SharedNext<RuntimeStats>();

  /** @param options.deadlineMs for each look, however long those wait who share it. */
  constructor(options: { deadlineMs: number }) {
    this.#deadlineMs = options.deadlineMs;
  }

  /** @throws what `look` throws; DeadlineExceeded. */
  of(sandboxId: string, look: (options: CallOptions) => Promise<RuntimeStats>): Promise<RuntimeStats> {
    return this.#looks.run(sandboxId, async () => {
      using deadline = deadlineAfter(this.#deadlineMs);
      return await look(deadline);
    });
  }
}
