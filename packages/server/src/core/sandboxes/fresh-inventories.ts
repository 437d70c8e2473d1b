import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import { SharedNext } from "../../platform/shared-next.ts";
import type { InventoryEntry, RuntimeId, RuntimeProvider } from "../../ports/index.ts";
import { callDeadlineMs } from "./context.ts";

type States = ReadonlyMap<RuntimeId, InventoryEntry["state"]>;

/**
 * Inventories of providers that were begun after they were asked for. Everybody who asks while one is under way
 * shares the next, so that a thousand sandboxes that end at once cost two.
 */
export class FreshInventories {
  readonly #looks = new SharedNext<States>();
  readonly #signal: AbortSignal;

  /** @param options.signal ends every wait for one. */
  constructor(options: { signal: AbortSignal }) {
    this.#signal = options.signal;
  }

  /** @throws what the provider throws; DeadlineExceeded. */
  async stateOf(
    provider: RuntimeProvider,
    runtimeId: RuntimeId,
  ): Promise<InventoryEntry["state"] | undefined> {
    const states = await this.#looks.run(provider, () => takeInventory(provider, this.#signal));
    return states.get(runtimeId);
  }
}

async function takeInventory(provider: RuntimeProvider, signal: AbortSignal): Promise<States> {
  using deadline = deadlineAfter(callDeadlineMs, signal);
  const inventory = await abortable(provider.inventory(deadline), deadline.signal);
  return new Map(inventory.map(({ runtimeId, state }) => [runtimeId, state]));
}
