import { ShuttingDown } from "../../platform/deadline.ts";
import { DomainError, type SandboxId, type SandboxRow } from "../../ports/index.ts";
import type { SandboxContext } from "./context.ts";
import type { DestroyFlow } from "./destroy-flow.ts";
import { FairLanes, type Lane } from "./fair-lanes.ts";

/** Expired sandboxes of one provider whose runtimes are ended at once; the others wait in line. */
const parallelExpiries = 16;
/** So many begin to end in one turn of the event loop; the others in the next. */
const perTurn = 100;

/**
 * Ends sandboxes whose time has come, however many come due together: each is `expired` within a few turns of the event
 * loop, and nobody can use it any more. Then its runtime waits for its turn to be ended.
 */
export class ExpireFlow {
  readonly #context: Pick<SandboxContext, "live" | "clock" | "logger">;
  readonly #destroys: DestroyFlow;
  readonly #setAgain: (id: SandboxId, at: Date) => void;
  readonly #due = new Set<SandboxId>();
  #beginning = false;
  /** By worker and provider: one that answers nothing does not keep those of others waiting. */
  readonly #lanes = new Map<string, FairLanes>();
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

  /** What has not begun waits for the next start, and so do runtimes whose turn has not come. */
  close(): void {
    this.#closed = true;
    this.#due.clear();
    for (const lanes of this.#lanes.values()) lanes.refuse(new ShuttingDown());
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
      await this.#destroys.begin(entry, "expired", () => this.#lane(entry.row));
    } catch (error) {
      if (this.#closed || (error instanceof DomainError && error.code === "not_found")) return;
      logger.warn({ sandbox_id: id, err: error }, "an expired sandbox could not be destroyed yet");
    }
  }

  async #lane({ workerId, provider, ownerId }: SandboxRow): Promise<Lane> {
    if (this.#closed) throw new ShuttingDown();
    const address = `${workerId} ${provider}`;
    const lanes = this.#lanes.get(address) ?? new FairLanes(parallelExpiries);
    this.#lanes.set(address, lanes);
    const lane = await lanes.enter(ownerId);
    // A destroy that waits for nothing would go on in the same turn of the event loop, with all that follow.
    return { leave: () => void setImmediate(() => lane.leave()) };
  }
}
