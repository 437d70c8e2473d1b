import { DomainError, type SandboxId } from "../../ports/index.ts";
import type { SandboxContext } from "./context.ts";
import type { DestroyFlow } from "./destroy-flow.ts";

/** Ends sandboxes whose time has come. */
export class ExpireFlow {
  readonly #context: Pick<SandboxContext, "live" | "clock" | "logger">;
  readonly #destroys: DestroyFlow;

  constructor(context: Pick<SandboxContext, "live" | "clock" | "logger">, destroys: DestroyFlow) {
    this.#context = context;
    this.#destroys = destroys;
  }

  /** @param setAgain for a sandbox that was extended meanwhile. */
  due(id: SandboxId, setAgain: (at: Date) => void): void {
    void this.#destroyExpired(id, setAgain).catch((error: unknown) => {
      if (error instanceof DomainError && error.code === "not_found") return;
      this.#context.logger.warn(
        { sandbox_id: id, err: error },
        "an expired sandbox could not be destroyed yet",
      );
    });
  }

  async #destroyExpired(id: SandboxId, setAgain: (at: Date) => void): Promise<void> {
    const { live, clock } = this.#context;
    let entry = live.get(id);
    while (entry?.work?.kind === "other") {
      await live.finished(entry.work);
      entry = live.get(id);
    }
    if (entry === undefined || entry.work !== undefined) return;
    if (entry.row.expiresAt.getTime() > clock.now().getTime()) setAgain(entry.row.expiresAt);
    else await this.#destroys.begin(entry, "expired");
  }
}
