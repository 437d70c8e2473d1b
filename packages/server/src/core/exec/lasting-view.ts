import { setTimeout as pause } from "node:timers/promises";
import { DomainError } from "../../ports/errors.ts";
import type { ExecEvent, ExecView } from "../../ports/sandbox-operations.ts";

/** How long a connection that broke is tried to be replaced, and how often. */
const patienceMs = 10_000;
const pauseMs = 100;

/**
 * A view of a command that outlives its connection: when that breaks while the sandbox runs, the command is attached to
 * again where the output broke off. Without an exit it ends only with the sandbox, or when the sandbox cannot be reached.
 */
export class LastingView {
  #view: ExecView;
  #nextOffset: number;
  readonly #attach: (from: number) => Promise<ExecView>;
  readonly #sandboxRuns: () => boolean;
  #closed = false;

  constructor(options: {
    view: ExecView;
    /** Of the first byte of the view. */
    from: number;
    attach: (from: number) => Promise<ExecView>;
    sandboxRuns: () => boolean;
  }) {
    this.#view = options.view;
    this.#nextOffset = options.from;
    this.#attach = options.attach;
    this.#sandboxRuns = options.sandboxRuns;
  }

  writeStdin(data: Uint8Array): Promise<void> {
    return this.#view.writeStdin(data);
  }

  closeStdin(): Promise<void> {
    return this.#view.closeStdin();
  }

  /** Read to the end, not only to the exit: a view that is left early costs its connection. */
  async *events(): AsyncGenerator<ExecEvent> {
    for (;;) {
      let ended = false;
      let cause: unknown;
      try {
        for await (const event of this.#view.events) {
          if (event.type === "exit") ended = true;
          else this.#nextOffset = event.offset + event.data.length;
          yield event;
        }
      } catch (error) {
        cause = error;
      }
      if (ended || this.#closed) return;
      const again = await this.#attachAgain();
      if (again === undefined) {
        if (cause !== undefined) throw cause;
        return;
      }
      await closeQuietly(this.#view);
      this.#view = again;
      if (this.#closed) await again[Symbol.asyncDispose]();
    }
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#view[Symbol.asyncDispose]();
  }

  async #attachAgain(): Promise<ExecView | undefined> {
    const deadlineMs = performance.now() + patienceMs;
    while (!this.#closed && this.#sandboxRuns() && performance.now() < deadlineMs) {
      try {
        return await this.#attach(this.#nextOffset);
      } catch (error) {
        if (error instanceof DomainError && error.code === "not_found") return undefined;
      }
      await pause(pauseMs);
    }
    return undefined;
  }
}

/** For a view whose connection is gone anyway. */
async function closeQuietly(view: ExecView): Promise<void> {
  try {
    await view[Symbol.asyncDispose]();
  } catch {
    // Its holder has a new one.
  }
}
