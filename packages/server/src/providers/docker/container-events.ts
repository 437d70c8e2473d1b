import { setTimeout as delay } from "node:timers/promises";
import { Value } from "typebox/value";
import { linesOf } from "../../platform/lines-of.ts";
import type { Logger } from "../../platform/logger.ts";
import { outsideRequests } from "../../platform/request-scope.ts";
import type { RuntimeId } from "../../ports/index.ts";
import type { EngineClient } from "./engine-client.ts";
import { ContainerEvent } from "./engine-shapes.ts";
import { ownedBy, runtimeOf } from "./labels.ts";

const firstRetryMs = 200;
const longestRetryMs = 10_000;
/** An event repeats what is configured of its container: ours may have a tenth of it. */
const longestEventBytes = 1_048_576;

/**
 * The engine's stream of container ends, one for all runtimes of this instance. States: idle until `start`, then
 * following and, between streams, waiting for the next try, until disposed. What ended between two streams is not
 * told: `onReconnected` lets the holder look for itself.
 */
export class ContainerEvents implements Disposable {
  readonly #engine: EngineClient;
  readonly #instanceId: string;
  readonly #logger: Logger;
  readonly #onDied: (runtimeId: RuntimeId) => void;
  readonly #onReconnected: () => void;
  readonly #closing = new AbortController();
  #started = false;

  constructor(options: {
    engine: EngineClient;
    instanceId: string;
    logger: Logger;
    onDied: (runtimeId: RuntimeId) => void;
    onReconnected: () => void;
  }) {
    this.#engine = options.engine;
    this.#instanceId = options.instanceId;
    this.#logger = options.logger;
    this.#onDied = options.onDied;
    this.#onReconnected = options.onReconnected;
  }

  start(): void {
    if (this.#started) return;
    this.#started = true;
    void outsideRequests(() => this.#run());
  }

  [Symbol.dispose](): void {
    this.#closing.abort(new Error("the provider was closed"));
  }

  async #run(): Promise<void> {
    const { signal } = this.#closing;
    let retryMs = firstRetryMs;
    for (let round = 0; !signal.aborted; round++) {
      try {
        await this.#follow(() => {
          retryMs = firstRetryMs;
          if (round > 0) this.#onReconnected();
        });
      } catch (error) {
        if (signal.aborted) return;
        this.#logger.warn({ err: error, retry_ms: retryMs }, "the Docker Engine's event stream broke");
      }
      await delay(retryMs, undefined, { signal, ref: false }).catch(() => undefined);
      retryMs = Math.min(retryMs * 2, longestRetryMs);
    }
  }

  async #follow(onOpen: () => void): Promise<void> {
    const stream = await this.#engine.stream({
      method: "GET",
      path: "/events",
      query: { filters: ownedBy(this.#instanceId, { type: ["container"], event: ["die"] }) },
      signal: this.#closing.signal,
    });
    // The stream alone must not keep the process alive.
    stream.socket.unref();
    onOpen();
    for await (const text of linesOf(stream, { longestBytes: longestEventBytes })) {
      const event: unknown = text.trim() === "" ? {} : JSON.parse(text);
      if (!Value.Check(ContainerEvent, event)) continue;
      const labels = event.Actor.Attributes ?? {};
      const runtimeId = runtimeOf(this.#instanceId, { name: labels.name, labels });
      if (runtimeId !== undefined) this.#onDied(runtimeId);
    }
  }
}
