import { DomainError, type SandboxId } from "../../ports/index.ts";
import type { SandboxContext } from "./context.ts";
import type { DestroyFlow } from "./destroy-flow.ts";

/** Expired sandboxes of one provider that are destroyed at once; the others wait in line. */
const parallelExpiries = 16;

/** Expired sandboxes of one provider, in the order in which they came due. */
interface Line {
  readonly waiting: Set<SandboxId>;
  working: number;
}

/** Ends sandboxes whose time has come, however many come due together. */
export class ExpireFlow {
  readonly #context: Pick<SandboxContext, "live" | "clock" | "logger">;
  readonly #destroys: DestroyFlow;
  readonly #setAgain: (id: SandboxId, at: Date) => void;
  /** By worker and provider: one that answers nothing does not keep those of others waiting. */
  readonly #lines = new Map<string, Line>();
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
    const row = this.#context.live.get(id)?.row;
    if (row === undefined || this.#closed) return;
    const address = `${row.workerId} ${row.provider}`;
    const line = this.#lines.get(address) ?? { waiting: new Set(), working: 0 };
    this.#lines.set(address, line);
    line.waiting.add(id);
    if (line.working < parallelExpiries) void this.#work(address, line);
  }

  /** What has not begun waits for the next start. */
  close(): void {
    this.#closed = true;
    this.#lines.clear();
  }

  async #work(address: string, line: Line): Promise<void> {
    line.working++;
    for (const id of line.waiting) {
      line.waiting.delete(id);
      await this.#end(id);
      // A destroy that waits for nothing would go on in the same turn of the event loop, with all that follow.
      await new Promise<void>((resolve) => setImmediate(resolve));
      if (this.#closed) break;
    }
    line.working--;
    if (line.working === 0 && this.#lines.get(address) === line) this.#lines.delete(address);
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
      await this.#destroys.begin(entry, "expired");
    } catch (error) {
      if (error instanceof DomainError && error.code === "not_found") return;
      logger.warn({ sandbox_id: id, err: error }, "an expired sandbox could not be destroyed yet");
    }
  }
}
