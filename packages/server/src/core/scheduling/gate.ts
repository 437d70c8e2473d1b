import { abortable } from "../../platform/abortable.ts";
import type { RuntimeProvider } from "../../ports/index.ts";

/** Closed until `open`; then open for good. */
export class Gate {
  #open!: () => void;
  #opened = false;
  readonly ready: Promise<void>;

  constructor() {
    this.ready = new Promise((resolve) => {
      this.#open = resolve;
    });
  }

  get opened(): boolean {
    return this.#opened;
  }

  open(): void {
    this.#opened = true;
    this.#open();
  }

  /** @throws the signal's reason when it aborts first. */
  async wait(signal: AbortSignal): Promise<void> {
    if (!this.#opened) await abortable(this.ready, signal);
  }
}

/**
 * What has to be known before requests can be answered: `loaded` is open once memory holds what the store has, the gate
 * of a provider once its runtimes have been listed or it did not answer. Sandboxes are adopted afterwards.
 */
export class StartGates {
  readonly loaded = new Gate();
  readonly #providers = new Map<RuntimeProvider, Gate>();

  ofProvider(provider: RuntimeProvider): Gate {
    const known = this.#providers.get(provider);
    if (known !== undefined) return known;
    const gate = new Gate();
    this.#providers.set(provider, gate);
    return gate;
  }
}
