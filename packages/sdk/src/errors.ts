/**
 * Codes of our own, beside the service's. `unreachable`: no connection was made, nothing was done. `cut`: it broke, and the
 * request may have been carried out. `client_timeout`: no answer in time, which may be both. `bad_response`: an answer that
 * is none. `bad_request`, as of the service: an address, an id or a header that is none, nothing was asked; or a body that is not as
 * long as was announced, and was not sent whole.
 */
export type ClientErrorCode =
  | "unreachable"
  | "client_timeout"
  | "cancelled"
  | "cut"
  | "bad_response"
  | "bad_request";

/** A call that failed: refused by the service, or never answered. */
export class AlcoveError extends Error {
  /** The HTTP status; 0 when there was no answer, and for a refusal told within a WebSocket: `code` says which. */
  readonly status: number;
  /** The service's code, or one of ClientErrorCode. */
  readonly code: string;
  /** The whole error body. */
  readonly details: Readonly<Record<string, unknown>>;
  readonly requestId: string | undefined;
  /** After how many seconds it may go through, where waiting helps. */
  readonly retryAfterS: number | undefined;

  constructor(options: {
    status: number;
    code: string;
    message: string;
    details?: Record<string, unknown>;
    requestId?: string | undefined;
    retryAfterS?: number | undefined;
    cause?: unknown;
  }) {
    super(options.message, options.cause === undefined ? {} : { cause: options.cause });
    this.name = "AlcoveError";
    this.status = options.status;
    this.code = options.code;
    this.details = options.details ?? {};
    this.requestId = options.requestId;
    this.retryAfterS = options.retryAfterS;
  }
}

export function clientError(code: ClientErrorCode, message: string, cause?: unknown): AlcoveError {
  return new AlcoveError({ status: 0, code, message, cause });
}
