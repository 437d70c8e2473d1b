import type { ErrorCode, LimitReason, MissingThing } from "@alcove/wire";

/**
 * A refusal or failure that the caller is told about. `message` names the thing, the value, the limit and the way out.
 * Only `api/error-map.ts` turns `code` into a status.
 */
export class DomainError extends Error {
  readonly code: ErrorCode;
  /** Extra keys of the error body, wire spelling. */
  readonly details: Readonly<Record<string, unknown>>;
  /** Seconds after which the same request may well succeed; absent where waiting does not help. */
  readonly retryAfterS: number | undefined;

  constructor(code: ErrorCode, message: string, options: DomainErrorOptions = {}) {
    super(message, options.cause === undefined ? {} : { cause: options.cause });
    this.name = new.target.name;
    this.code = code;
    this.details = options.details ?? {};
    this.retryAfterS = options.retryAfterS;
  }

  /** Nobody has to search for the place it came from: logs tell it without its stack. */
  get expected(): boolean {
    return this.code !== "internal" && this.code !== "provider_error";
  }
}

export type DomainErrorOptions = { cause?: unknown; details?: Record<string, unknown>; retryAfterS?: number };

export class BadRequest extends DomainError {
  constructor(message: string, options?: DomainErrorOptions) {
    super("bad_request", message, options);
  }
}
export class Forbidden extends DomainError {
  constructor(message: string, options?: DomainErrorOptions) {
    super("forbidden", message, options);
  }
}
export class NotFound extends DomainError {
  /** @param options.what tells a program what there is none of; left out where it can do nothing about it. */
  constructor(message: string, options: DomainErrorOptions & { what?: MissingThing } = {}) {
    const { what, details, ...others } = options;
    const told = what === undefined ? details : { ...details, what };
    super("not_found", message, told === undefined ? others : { ...others, details: told });
  }
}
export class Conflict extends DomainError {
  constructor(message: string, options?: DomainErrorOptions) {
    super("conflict", message, options);
  }
}
export class TooLarge extends DomainError {
  constructor(message: string, options?: DomainErrorOptions) {
    super("too_large", message, options);
  }
}
export class ResourceLimit extends DomainError {
  constructor(message: string, options?: DomainErrorOptions) {
    super("resource_limit", message, options);
  }
}
/** A sandbox's own disk has no room for what is written to it. */
export class SandboxDiskFull extends ResourceLimit {
  constructor(message: string, options: Pick<DomainErrorOptions, "cause"> = {}) {
    super(message, { ...options, details: { reason: "disk" satisfies LimitReason } });
  }
}
/** The deadline of a buffered exec. Its details carry `exec_id`, `stdout`, `stderr`. */
export class TimedOut extends DomainError {
  constructor(message: string, options?: DomainErrorOptions) {
    super("timeout", message, options);
  }
}
/** The backend was reached and refused or failed; what it said stays in `cause`. */
export class ProviderError extends DomainError {
  constructor(message: string, options?: DomainErrorOptions) {
    super("provider_error", message, options);
  }
}
/** The backend cannot be reached, or the service is not ready for this now. */
export class Unavailable extends DomainError {
  constructor(message: string, options?: DomainErrorOptions) {
    super("unavailable", message, options);
  }
}
/** The disk of the service has no room for this; what frees room still works. */
export class StorageFull extends DomainError {
  constructor(message: string, options?: DomainErrorOptions) {
    super("storage_full", message, options);
  }
}
/** A runtime was made at a backend that is not the one which is asked now: it may go on there, and cannot be reached or ended. */
export class RuntimeElsewhere extends DomainError {
  constructor(message: string, options?: DomainErrorOptions) {
    super("unavailable", message, options);
  }
}
/** The runtime of a sandbox is no longer there: it ended by itself or was removed behind our back. */
export class RuntimeGone extends DomainError {
  constructor(message: string, options?: DomainErrorOptions) {
    super("unavailable", message, options);
  }
}
