import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import type { EventSink, InventoryEntry, RuntimeId, RuntimeProvider } from "../../ports/index.ts";
import { ownerData } from "../events/owner-data.ts";
import type { SandboxLifecycle } from "../sandboxes/compose.ts";
import type { StoreAge } from "./store-age.ts";

/** How long those that are taken in may wait for names whose former sandboxes have ended, or may have. */
const namePatienceMs = 10_000;
/** Taken in at once, of one provider: each asks its sandbox something. */
const parallelProbes = 64;

export interface UnknownRuntimesOptions {
  lifecycle: Pick<SandboxLifecycle, "live" | "recover" | "destroys">;
  age: Pick<StoreAge, "lacks">;
  events: EventSink;
  logger: Logger;
  /** Begins an end, which nobody waits for. */
  end: (runtimeId: RuntimeId, end: () => Promise<void>) => void;
  onFailure: (error: unknown, runtime: InventoryEntry) => void;
}

/** Runtimes of this installation that no row names: sandboxes that an older store lacks, or what a spawn left. */
export class UnknownRuntimes {
  readonly #options: UnknownRuntimesOptions;

  constructor(options: UnknownRuntimesOptions) {
    this.#options = options;
  }

  /** @returns false when some have to be looked at again soon. */
  async settle(
    provider: RuntimeProvider,
    runtimes: readonly InventoryEntry[],
    closing: AbortSignal,
  ): Promise<boolean> {
    using names = deadlineAfter(namePatienceMs, closing);
    let settled = true;
    await boundedParallel(runtimes, parallelProbes, async (runtime) => {
      try {
        await this.#settle(provider, runtime, names.signal);
      } catch (error) {
        settled = false;
        this.#options.onFailure(error, runtime);
      }
    });
    return settled;
  }

  async #settle(provider: RuntimeProvider, runtime: InventoryEntry, names: AbortSignal): Promise<void> {
    const { lifecycle, age, logger, end } = this.#options;
    const { live, recover } = lifecycle;
    const { runtimeId, state } = runtime;
    if (live.knows(runtime)) return;
    if (state === "unreadable") {
      logger.warn(
        { provider: provider.name, runtime_id: runtimeId },
        "a runtime's record cannot be read by this release; it is left alone",
      );
      return;
    }
    if (state === "elsewhere") {
      // Its sandbox is over, and it may stay for good when that place is gone.
      logger.debug(
        { provider: provider.name, runtime_id: runtimeId },
        "a runtime was made where its provider is not any more; it is left alone",
      );
      return;
    }
    const wanted = state === "running" && age.lacks(provider, runtime) && !recover.isLeftOver(runtime);
    if (wanted && (await recover.takeIn(provider, runtime, { names }))) return;
    end(runtimeId, () => this.#destroy(provider, runtime));
  }

  async #destroy(provider: RuntimeProvider, runtime: InventoryEntry): Promise<void> {
    const { lifecycle, events, logger } = this.#options;
    if (!(await lifecycle.destroys.removeOrphan(provider, runtime))) return;
    const ownerId = runtime.note?.ownerId ?? "";
    const line = {
      event: "sandbox.destroy",
      outcome: "ok",
      ...(runtime.sandboxId === undefined ? {} : { sandbox_id: runtime.sandboxId }),
      ...ownerData(ownerId),
      runtime_id: runtime.runtimeId,
      provider: provider.name,
      reason: "reconciled",
    };
    if (runtime.state === "running")
      logger.warn(
        line,
        "an orphaned runtime was destroyed while it ran: no sandbox of the database was in it",
      );
    else logger.info(line, "what was left of an orphaned runtime was removed");
    const data = { action: "destroyed_orphan", provider: provider.name };
    const sandboxId = runtime.sandboxId ?? "";
    events.emit({ type: "reconcile.action", sandboxId, ownerId, data });
  }
}
