import type { IncomingMessage } from "node:http";
import type { PreviewTarget } from "../../core/previews/preview-links.ts";
import type { Logger } from "../../platform/logger.ts";
import type { Clock } from "../../ports/clock.ts";
import type { DomainError } from "../../ports/errors.ts";

/** How one visit went, filled in as it becomes known. */
export interface VisitRecord {
  target?: PreviewTarget;
  /** The address that is asked from. */
  address?: string;
  /** Of the answer; 101 for a WebSocket. */
  status: number;
  /** Why there was none from the program. */
  refusal?: DomainError;
  /** The visitor left, or the program broke off. */
  cut?: boolean;
}

/** One line per request to a host of previews at its end, as the API's own requests have. The path is the program's matter. */
export class VisitLog {
  readonly #logger: Logger;
  readonly #clock: Pick<Clock, "monotonicMs">;

  constructor(options: { logger: Logger; clock: Pick<Clock, "monotonicMs"> }) {
    this.#logger = options.logger;
    this.#clock = options.clock;
  }

  /** Writes the line when it is disposed of. */
  begin(request: IncomingMessage): VisitRecord & Disposable {
    const beganMs = this.#clock.monotonicMs();
    const record: VisitRecord & Disposable = {
      status: 0,
      [Symbol.dispose]: () => this.#tell(request, record, this.#clock.monotonicMs() - beganMs),
    };
    return record;
  }

  #tell(
    request: IncomingMessage,
    { target, address, status, refusal, cut }: VisitRecord,
    durationMs: number,
  ): void {
    this.#logger.info(
      {
        event: "request",
        outcome: refusal !== undefined ? (status >= 500 ? "failed" : "refused") : cut ? "gone" : "ok",
        method: request.method,
        host: request.headers.host?.slice(0, 300),
        status,
        duration_ms: Math.round(durationMs * 100) / 100,
        ...(target !== undefined && { sandbox_id: target.sandboxId, port: target.port }),
        ...(refusal !== undefined && { code: refusal.code, error: refusal.message }),
        ...(refusal !== undefined && status < 500 && { remote_addr: address }),
      },
      "request",
    );
  }
}
