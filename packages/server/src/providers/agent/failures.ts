import { isOutOfDescriptors, moreDescriptors } from "../../platform/momentary.ts";
import {
  BadRequest,
  Conflict,
  DomainError,
  NotFound,
  ProviderError,
  RuntimeGone,
  SandboxDiskFull,
  TooLarge,
  Unavailable,
} from "../../ports/errors.ts";

/** The longest message names a path or two; events and logs keep them. */
const maxMessage = 8_192;
const maxCode = 64;

/**
 * The domain's word for an agent's error code. `permission` is a BadRequest: the sandbox's own rules refuse what was
 * asked for, and 403 would tell the caller that another key might help.
 */
export function translateFailure(
  code: string,
  text: string,
  { name, op }: { name: string; op?: string | undefined },
): DomainError {
  const message = text.length > maxMessage ? `${text.slice(0, maxMessage).toWellFormed()}…` : text;
  switch (code) {
    case "not_found":
      return notFound(message, op);
    case "conflict":
    case "exists":
    case "not_empty":
      return new Conflict(message);
    case "bad_request":
    case "is_directory":
    case "not_directory":
    case "not_regular":
    case "permission":
    case "unsupported":
      return new BadRequest(message);
    case "no_space":
      return new SandboxDiskFull(message);
    case "too_large":
      return new TooLarge(message);
    case "busy":
      return new Unavailable(message, { retryAfterS: 1 });
    case "timeout":
      return new DomainError("gateway_timeout", `sandbox ${name}: ${message}`);
    default:
      // No fault of the agent's: the program broke the connection before it was one, or the port has no way there.
      if (code === "io" && op === "port.dial")
        return new DomainError("bad_gateway", `sandbox ${name}: ${message}`, { retryAfterS: 1 });
      return new ProviderError(`agent of sandbox ${name}: ${message} (${code.slice(0, maxCode)})`);
  }
}

/** What an operation looks for in a sandbox. A start misses its program or directory, not a command. */
function notFound(message: string, op = ""): NotFound {
  if (op.startsWith("file.")) return new NotFound(message, { what: "file" });
  if (op.startsWith("exec.") && op !== "exec.start") return new NotFound(message, { what: "exec" });
  return new NotFound(message);
}

/** Ends of a connection that mean: nobody listens there any more. */
const goneCodes = new Set(["ECONNREFUSED", "ENOENT", "ECONNRESET", "EPIPE", "ENXIO", "ENOTCONN"]);

/** A failed dial. What is neither a DomainError nor a sign of a dead runtime is the backend's failure. */
export function translateDialFailure(error: unknown, name: string): Error {
  const code = errorCode(error);
  if (code !== undefined && goneCodes.has(code)) {
    // Which of the two is the provider's to say, who sees its process.
    const message = `sandbox ${name} has ended, or nothing listens at its agent's socket any more (${code})`;
    return new RuntimeGone(message, { cause: error });
  }
  if (isOutOfDescriptors(error)) return new Unavailable(moreDescriptors, { cause: error });
  if (code === undefined && error instanceof Error) return error;
  return new ProviderError(`the agent of sandbox ${name} cannot be reached: ${String(error)}`, {
    cause: error,
  });
}

/** A connection broke under a request. Whether it was carried out, and whether the runtime lives, is not known. */
export class ConnectionBroke extends RuntimeGone {}

export function connectionBroke(name: string, cause?: unknown): ConnectionBroke {
  const message = `the connection to sandbox ${name} broke, or the sandbox has ended`;
  return new ConnectionBroke(message, cause === undefined || cause === null ? {} : { cause });
}

export function runtimeGone(name: string, cause?: unknown): RuntimeGone {
  return new RuntimeGone(`sandbox ${name} has ended`, cause === undefined || cause === null ? {} : { cause });
}

export function errorCode(error: unknown): string | undefined {
  return error instanceof Error && "code" in error && typeof error.code === "string" && error.code !== ""
    ? isErrno(error.code)
      ? error.code
      : undefined
    : undefined;
}

/** System codes are upper case; DomainErrors carry lower-case codes of their own. */
function isErrno(code: string): boolean {
  return /^E[A-Z0-9]+$/.test(code);
}
