import { abortable } from "../../platform/abortable.ts";

/** Closed until the first reconciliation is done; then open for good. */
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
