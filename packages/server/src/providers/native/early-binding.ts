import type { Duplex } from "node:stream";
import type { AgentDialer } from "../agent/index.ts";
import type { RuntimeRecord } from "./runtime-record.ts";

/**
 * What is said to an agent while its launch is still under way: it waits at the agent's socket until that begins. States:
 * empty; begun, by the latest launch that got so far; taken, by `take`, which closes what another launch began.
 */
export class EarlyBinding<T extends { client: AsyncDisposable }> {
  #begun: { record: RuntimeRecord; bound: Promise<T> } | undefined;

  begin(record: RuntimeRecord, bound: Promise<T>): void {
    this.take();
    // Told to who takes it.
    bound.catch(() => undefined);
    this.#begun = { record, bound };
  }

  /**
   * @param record of the launch that came to its end; absent: none did.
   * @returns undefined when nothing was said to its agent yet.
   */
  take(record?: RuntimeRecord): Promise<T> | undefined {
    const begun = this.#begun;
    this.#begun = undefined;
    if (begun === undefined || begun.record === record) return begun?.bound;
    begun.bound.then(
      ({ client }) => client[Symbol.asyncDispose](),
      () => undefined,
    );
    return undefined;
  }
}

/** Dials with a connection that is there already, once, and as `dial` from then on. */
export function firstBy(connection: Duplex | undefined, dial: AgentDialer): AgentDialer {
  let ready = connection;
  return async (options) => {
    const found = ready;
    ready = undefined;
    return found === undefined || found.destroyed ? dial(options) : found;
  };
}
