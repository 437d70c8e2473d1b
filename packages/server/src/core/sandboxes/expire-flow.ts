import { DomainError, type SandboxId } from "../../ports/index.ts";
import type { SandboxContext } from "./context.ts";
import type { DestroyFlow } from "./destroy-flow.ts";

/** So many begin to end in one turn of the event loop, some milliseconds with their writes; the others in the next. */
const perTurn = 50;

/**
 * Ends sandboxes whose time has come, however many come due together: each is `expired` within a few turns of the event
 * loop, and nobody can use it any more. Then its runtime waits for its turn to be ended, and until it has ended it takes up
 * its place at the limits.
 */
export class ExpireFlow {
  readonly #context: Pick<SandboxContext, "live" | "clock" | "logger">;
  readonly #destroys: DestroyFlow;
  readonly #setAgain: (id: SandboxId, at: Date) => void;
  readonly #due = new Set<SandboxId>();
  #beginning = false;
  #closed = false;

  /** @param options.setAgain for a sandbox that was extended meanwhile. */
  constructor(options: {
    context: Pick<SandboxContext, "live" | "clock" | "logger">;
    destroys: DestroyFlow;
    setAgain: (id: SandboxId, at: Date) => void;
  }) {
    this.#context = options.context;
    this.#destroys = options.destroys;
    this.#setAgain = options.setAgain;
  }

  due(id: SandboxId): void {
    if (this.#closed) return;
    this.#due.add(id);
    if (this.#beginning) return;
    this.#beginning = true;
    setImmediate(() => this.#begin());
  }

  /** What has not begun waits for the next start. */
  close(): void {
    this.#closed = true;
    this.#due.clear();
  }

  #begin(): void {
    let begun = 0;
    for (const id of this.#due) {
      if (begun++ >= perTurn) break;
      this.#due.delete(id);
      void this.#end(id);
    }
    this.#beginning = this.#due.size > 0;
    if (this.#beginning) setImmediate(() => this.#begin());
  }

  async #end(id: SandboxId): Promise<void> {
    const { live, clock, logger } = this.#context;
    const entry = live.get(id);
    if (entry?.work?.kind === "other") {
      void live.finished(entry.work).then(() => this.due(id));
      return;
    }
    if (entry === undefined || entry.work !== undefined) return;
    if (entry.row.expiresAt.getTime() > clock.now().getTime()) {
      this.#setAgain(id, entry.row.expiresAt);
      return;
    }
    try {
      await this.#destroys.begin(entry, "expired", { inLine: true });
    } catch (error) {
      if (this.#closed || (error instanceof DomainError && error.code === "not_found")) return;
      logger.warn({ sandbox_id: id, err: error }, "an expired sandbox could not be destroyed yet");
    }
  }
}
