import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { InventoryEntry, RuntimeId, RuntimeProvider } from "../../ports/index.ts";
import { callDeadlineMs } from "./context.ts";

type States = ReadonlyMap<RuntimeId, InventoryEntry["state"]>;

/**
 * Inventories of providers that were begun after they were asked for. Everybody who asks while one is under way
 * shares the next, so that a thousand sandboxes that end at once cost two.
 */
export class FreshInventories {
  readonly #current = new Map<RuntimeProvider, Promise<States>>();
  readonly #next = new Map<RuntimeProvider, Promise<States>>();
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
    const states = await (this.#next.get(provider) ?? this.#queue(provider));
    return states.get(runtimeId);
  }

  #queue(provider: RuntimeProvider): Promise<States> {
    const before = this.#current.get(provider)?.catch(() => undefined) ?? Promise.resolve();
    const next = before.then(() => {
      this.#next.delete(provider);
      const current = takeInventory(provider, this.#signal).finally(() => {
        if (this.#current.get(provider) === current) this.#current.delete(provider);
      });
      this.#current.set(provider, current);
      return current;
    });
    this.#next.set(provider, next);
    return next;
  }
}

async function takeInventory(provider: RuntimeProvider, signal: AbortSignal): Promise<States> {
  using deadline = deadlineAfter(callDeadlineMs, signal);
  const inventory = await abortable(provider.inventory(deadline), deadline.signal);
  return new Map(inventory.map(({ runtimeId, state }) => [runtimeId, state]));
}
