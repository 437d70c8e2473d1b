import type { Logger } from "../../platform/logger.ts";
import type { Clock, Store } from "../../ports/index.ts";
import { Unavailable } from "../../ports/index.ts";

const drainingSince = "draining_since";

/**
 * Whether this worker takes new sandboxes. It is `open` until it is drained and again when somebody ends that: a restart
 * changes nothing about it, because a machine that is to be empty should not fill again after a crash. Sandboxes that are
 * there live on, and everything but a spawn goes on as before. docs/operations/operate.md.
 */
export class Drain {
  readonly #store: Pick<Store, "changeSetting">;
  readonly #clock: Pick<Clock, "now">;
  readonly #logger: Logger;
  #since: Date | undefined;
  /** Changes are made one after the other, so that memory ends as the store does. */
  #changing: Promise<void> = Promise.resolve();
  readonly #listeners = new Set<() => void>();

  private constructor(options: DrainOptions, since: Date | undefined) {
    this.#store = options.store;
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#since = since;
  }

  static async open(options: DrainOptions): Promise<Drain> {
    const text = (await options.store.setting(drainingSince)) ?? "";
    const drain = new Drain(options, text === "" ? undefined : new Date(text));
    if (drain.refusal !== undefined) options.logger.warn({ event: "worker.drain" }, drain.refusal);
    return drain;
  }

  /** Since when nothing new is taken; undefined: it is. */
  get since(): Date | undefined {
    return this.#since;
  }

  /** Why nothing new is taken, and the way out; undefined: it is. */
  get refusal(): string | undefined {
    return this.#since === undefined
      ? undefined
      : `this service is drained since ${this.#since.toISOString()}: it takes no new sandboxes until \`alcove drain --end\``;
  }

  /** Calls back when it has changed. */
  onChange(listener: () => void): void {
    this.#listeners.add(listener);
  }

  /** @throws Unavailable while nothing new is taken. */
  admit(): void {
    const { refusal } = this;
    if (refusal !== undefined) throw new Unavailable(refusal, { details: { reason: "worker_unavailable" } });
  }

  /** Idempotent: the first time counts. Durable when it resolves. */
  begin(): Promise<void> {
    return this.#change(this.#clock.now());
  }

  /** Idempotent. Durable when it resolves. */
  end(): Promise<void> {
    return this.#change(undefined);
  }

  #change(since: Date | undefined): Promise<void> {
    const change = this.#changing.then(async () => {
      if ((since === undefined) === (this.#since === undefined)) return;
      await this.#store.changeSetting(drainingSince, since?.toISOString() ?? "");
      this.#since = since;
      this.#logger.info(
        { event: "worker.drain", draining: since !== undefined },
        since === undefined ? "new sandboxes are taken again" : "no new sandboxes are taken from now on",
      );
      for (const listener of this.#listeners) listener();
    });
    this.#changing = change.catch(() => undefined);
    return change;
  }
}

interface DrainOptions {
  store: Pick<Store, "setting" | "changeSetting">;
  clock: Pick<Clock, "now">;
  logger: Logger;
}
