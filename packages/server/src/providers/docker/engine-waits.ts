import { abortable } from "../../platform/abortable.ts";
import { type Deadline, deadlineAfter } from "../../platform/deadline.ts";
import { type CallOptions, Unavailable } from "../../ports/index.ts";

/** How long an engine may take. */
export interface EnginePatience {
  /** To say that it is there. */
  pingMs: number;
  /** For a call that names no time of its own. */
  callMs: number;
  /** Between looks whether it is there during a long call. */
  lookMs: number;
}

/** The engine takes calls and has not answered in time: whatever it has is there all the same. */
export class EngineSilent extends Unavailable {
  constructor(ms: number, cause: unknown) {
    super(
      `the Docker Engine has not answered within ${ms / 1000} s; try again, and restart it when that lasts`,
      {
        cause,
        retryAfterS: 5,
      },
    );
  }
}

export const usualPatience: EnginePatience = { pingMs: 10_000, callMs: 30_000, lookMs: 10_000 };

/**
 * Bounds what an engine is waited for: one that stands still, or is stopped, takes calls and answers none.
 * @throws EngineSilent, from every method, when it has not answered in time; the signal's reason when that aborts first.
 */
export class EngineWaits {
  readonly patience: EnginePatience;
  readonly #ping: (options: CallOptions) => Promise<void>;
  /** One at a time is enough for all who ask. */
  #pinging: Promise<void> | undefined;

  /** @param options.ping asks it something that it answers at once, whatever else it does. */
  constructor(options: { patience: EnginePatience; ping: (options: CallOptions) => Promise<void> }) {
    this.patience = options.patience;
    this.#ping = options.ping;
  }

  async within<T>(
    ms: number,
    { signal }: CallOptions,
    ask: (options: CallOptions) => Promise<T>,
  ): Promise<T> {
    using deadline = deadlineAfter(ms, signal);
    try {
      return await ask({ signal: deadline.signal });
    } catch (error) {
      if (signal.aborted || !deadline.signal.aborted) throw error;
      throw new EngineSilent(ms, error);
    }
  }

  /** Resolves when it answers: asked before what cannot be taken back. */
  awake({ signal }: CallOptions): Promise<void> {
    this.#pinging ??= this.within(this.patience.pingMs, { signal: new AbortController().signal }, (call) =>
      this.#ping(call),
    ).finally(() => {
      this.#pinging = undefined;
    });
    return abortable(this.#pinging, signal);
  }

  /** For a call that may take long: aborts as `parent` does, and once the engine answers nobody any more. */
  whileAwake(parent: AbortSignal): Deadline {
    const controller = new AbortController();
    let timer: NodeJS.Timeout | undefined;
    const look = () => {
      timer = setTimeout(() => {
        this.awake({ signal: controller.signal }).then(look, (error) => controller.abort(error));
      }, this.patience.lookMs);
      timer.unref();
    };
    const onAbort = () => controller.abort(parent.reason);
    if (parent.aborted) onAbort();
    else {
      parent.addEventListener("abort", onAbort, { once: true });
      look();
    }
    return {
      signal: controller.signal,
      [Symbol.dispose]() {
        clearTimeout(timer);
        parent.removeEventListener("abort", onAbort);
        controller.abort(new Error("the call is over"));
      },
    };
  }
}
