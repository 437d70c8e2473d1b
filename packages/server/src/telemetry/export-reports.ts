import type { Logger } from "../platform/logger.ts";
import type { Clock } from "../ports/clock.ts";

/** How long after a line about lost spans none follows, milliseconds. */
const quietMs = 60_000;

/** Tells that spans are lost, once in a while, and that they arrive again. */
export class ExportReports {
  readonly #logger: Logger;
  readonly #clock: Clock;
  #lost = 0;
  #error = "";
  #toldMs: number | undefined;
  #failing = false;

  constructor(options: { logger: Logger; clock: Clock }) {
    this.#logger = options.logger;
    this.#clock = options.clock;
  }

  /** @param error why a batch was not taken; undefined: it was. */
  sent(spans: number, error: string | undefined): void {
    if (error === undefined) {
      if (!this.#failing) return;
      this.#failing = false;
      this.tellRest();
      this.#logger.info({ event: "traces.sent" }, "traces reach their collector again");
      return;
    }
    this.#failing = true;
    this.lost(spans, error);
  }

  lost(spans: number, error: string): void {
    this.#lost += spans;
    const nowMs = this.#clock.monotonicMs();
    this.#error = error;
    if (this.#toldMs !== undefined && nowMs - this.#toldMs < quietMs) return;
    this.#toldMs = nowMs;
    this.tellRest();
  }

  /** What was lost since the last line. */
  tellRest(): void {
    if (this.#lost === 0) return;
    this.#logger.warn(
      { event: "traces.lost", spans: this.#lost, error: this.#error },
      "spans did not reach telemetry.otlp_endpoint and are lost; requests go on as ever",
    );
    this.#lost = 0;
  }
}
