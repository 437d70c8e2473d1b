import { boundedParallel } from "../../platform/bounded-parallel.ts";
import { type CallOptions, type ListedSandbox, NotFound } from "../../ports/index.ts";
import type { SandboxContext } from "./context.ts";
import type { DestroyFlow } from "./destroy-flow.ts";

/** Sandboxes in state error that are kept for their owners to look at, and those of one of them; of more, the oldest go. */
const mostKept = 1_000;
const mostKeptOfOwner = mostKept / 2;
const parallelDestroys = 16;

/**
 * Sandboxes in state error. They count against no limit, so that something else has to bound them: each leaves memory
 * once nothing of its runtime is left, and the rows end with their expiry, after a time, or when there are too many.
 */
export class FailedSandboxes {
  readonly #context: Pick<SandboxContext, "store" | "clock" | "logger" | "registry">;
  readonly #destroys: DestroyFlow;

  constructor(
    context: Pick<SandboxContext, "store" | "clock" | "logger" | "registry">,
    destroys: DestroyFlow,
  ) {
    this.#context = context;
    this.#destroys = destroys;
  }

  /** Destroys those that are not kept any longer. @returns how many are gone. */
  async sweep(options: CallOptions & { failedBefore?: Date; ownerId?: string }): Promise<number> {
    const { logger } = this.#context;
    let gone = 0;
    await boundedParallel(await this.#due(options), parallelDestroys, async ({ id }) => {
      try {
        await this.#destroys.destroy(id, { signal: options.signal, reason: "expired" });
        gone++;
      } catch (error) {
        if (options.signal.aborted) throw options.signal.reason;
        if (error instanceof NotFound) return;
        logger.warn({ sandbox_id: id, err: error }, "a sandbox in state error could not be destroyed yet");
      }
    });
    return gone;
  }

  async #due(options: { failedBefore?: Date; ownerId?: string }): Promise<ListedSandbox[]> {
    const { failedBefore, ownerId } = options;
    const { store, clock, registry } = this.#context;
    const due: ListedSandbox[] = [];
    let kept = 0;
    const keptOf = new Map<string, number>();
    const filter = { states: ["error"], limit: mostKept, ...(ownerId && { ownerId }) } as const;
    let page = await store.sandboxes.list(filter);
    for (;;) {
      const now = clock.now();
      for (const row of page.rows) {
        if (!registry.reaches(row)) continue;
        const over = row.expiresAt <= now || (failedBefore !== undefined && row.updatedAt < failedBefore);
        const ofOwner = keptOf.get(row.ownerId) ?? 0;
        if (over || kept >= mostKept || ofOwner >= mostKeptOfOwner) {
          due.push(row);
          continue;
        }
        kept++;
        keptOf.set(row.ownerId, ofOwner + 1);
      }
      if (page.next === undefined) return due;
      page = await store.sandboxes.list({ ...filter, after: page.next });
    }
  }
}
