import { formatDuration } from "@alcove/wire";
import { DeadlineExceeded } from "../../platform/deadline.ts";
import { messageOf } from "../../platform/message-of.ts";
import { DomainError, ProviderError, SandboxDiskFull, Unavailable } from "../../ports/errors.ts";
import { isTooLong } from "./answer-bounds.ts";
import { type RetryAfters, retryAfterAtMostS } from "./retry-afters.ts";

/** Codes of the Connect protocol, as far as they are told apart here. */
export const connectCodes = {
  unknown: 2,
  invalidArgument: 3,
  notFound: 5,
  alreadyExists: 6,
  permissionDenied: 7,
  resourceExhausted: 8,
  failedPrecondition: 9,
  internal: 13,
  unavailable: 14,
  unauthenticated: 16,
} as const;

/** What is read of errors of the package and of its RPC client. */
interface Failure {
  name: string;
  message: string;
  /** Of an RPC. */
  code?: unknown;
  /** Whether the other side said so. */
  isWireError?: unknown;
  metadata?: { get(name: string): string | null };
  statusCode?: number;
  cause?: unknown;
}

const defaultRetryAfterS = 5;
const causeLength = 300;
const unreachable = [502, 503, 504];

/** Says of a failure of the package what it means. */
export class Failures {
  readonly #retryAfters: RetryAfters;
  readonly #secrets: () => Iterable<string>;

  /** @param options.secrets what must not stand in any cause. */
  constructor(options: { retryAfters: RetryAfters; secrets: () => Iterable<string> }) {
    this.#retryAfters = options.retryAfters;
    this.#secrets = options.secrets;
  }

  /**
   * @param what ends "the e2b provider could not …".
   * @param signal of the call: why it was cut is told before all else.
   */
  translate(what: string, error: unknown, signal: AbortSignal): unknown {
    if (error instanceof DomainError) return error;
    if (signal.aborted) return aborted(what, signal.reason);
    const limited = this.#retryAfters.recent();
    const found = kindOf(error);
    // Where the package says nothing but that there was no answer.
    const kind = found === "unavailable" && limited !== undefined ? "limited" : found;
    const cause = this.#scrubbed(error);
    switch (kind) {
      case "refused":
        return new ProviderError(
          `e2b refused the configured key when asked to ${what}; check providers.e2b.api_key`,
        );
      case "limited": {
        const retryAfterS = retryAfter(error) ?? limited ?? defaultRetryAfterS;
        return new Unavailable(`e2b takes no more requests now (asked to ${what})`, { cause, retryAfterS });
      }
      case "unavailable":
        return new Unavailable(`e2b could not be reached, or was too busy, to ${what}`, {
          cause,
          retryAfterS: defaultRetryAfterS,
        });
      case "no space":
        return new SandboxDiskFull(`the disk of the sandbox is full: e2b could not ${what}`);
      case "other":
        return new ProviderError(`e2b failed to ${what}, or its answer could not be understood`, { cause });
      default:
        return kind satisfies never;
    }
  }

  /** What the log may have of it: no keys, and not all of a body. */
  #scrubbed(error: unknown): Error {
    let text = `${failureOf(error)?.name ?? "error"}: ${messageOf(error)}`;
    for (const secret of this.#secrets()) if (secret !== "") text = text.replaceAll(secret, "[redacted]");
    return new Error(text.slice(0, causeLength));
  }
}

/** What the control API says of a sandbox it does not have; the package says it of others that do not answer too. */
export function isMissingSandbox(error: unknown): boolean {
  return failureOf(error)?.name === "SandboxNotFoundError";
}

/** An answer 404 of the control API to a request that names no sandbox. */
export function isMissing(error: unknown): boolean {
  const failure = failureOf(error);
  return failure?.name === "NotFoundError" || failure?.statusCode === 404;
}

export function isMissingFile(error: unknown): boolean {
  const failure = failureOf(error);
  return failure?.name === "FileNotFoundError" || failure?.code === connectCodes.notFound;
}

export function isInvalid(error: unknown): boolean {
  const failure = failureOf(error);
  return (
    failure?.name === "InvalidArgumentError" ||
    // The RPC client says the same of what it cannot decode.
    (failure?.code === connectCodes.invalidArgument && failure.isWireError !== false) ||
    failure?.statusCode === 400
  );
}

/** The user of a call is not known in the sandbox: it is refused as a key would be, but names the user. */
export function isUnknownUser(error: unknown): boolean {
  return isRefused(error) && /user/i.test(messageOf(error));
}

/** What the RPC client says when envd has answered, and not when the way to it broke. */
export function isAnswer(error: unknown, ...codes: readonly number[]): boolean {
  const failure = failureOf(error);
  // It makes a code of the status of any other answer too.
  const isSaid = failure?.isWireError !== false && failure !== undefined && !isNetworkFailure(failure);
  return isSaid && codes.some((code) => failure.code === code);
}

function kindOf(error: unknown): "refused" | "limited" | "unavailable" | "no space" | "other" {
  const failure = failureOf(error);
  if (failure === undefined || isTooLong(error)) return "other";
  if (isRefused(error)) return "refused";
  if (failure.name === "NotEnoughSpaceError") return "no space";
  if (
    failure.name === "RateLimitError" ||
    failure.code === connectCodes.resourceExhausted ||
    (failure.code === connectCodes.unavailable && retryAfter(error) !== undefined)
  )
    return "limited";
  if (
    failure.name === "ServiceBusyError" ||
    failure.name === "TimeoutError" ||
    // Of a sandbox that is there: that is looked at before this is asked.
    failure.name === "SandboxNotFoundError" ||
    failure.code === connectCodes.unavailable ||
    unreachable.includes(failure.statusCode ?? 0) ||
    isNetworkFailure(failure)
  )
    return "unavailable";
  return "other";
}

function isRefused(error: unknown): boolean {
  const failure = failureOf(error);
  return (
    failure?.name === "AuthenticationError" ||
    failure?.statusCode === 403 ||
    failure?.code === connectCodes.unauthenticated ||
    failure?.code === connectCodes.permissionDenied
  );
}

/** `fetch` says so in a TypeError; so does a mistake in reading an answer, which has no cause. */
function isNetworkFailure(failure: Failure): boolean {
  const inner = failure.name === "ConnectError" ? failureOf(failure.cause) : failure;
  return (
    inner?.name === "TypeError" &&
    (inner.message === "fetch failed" ||
      inner.message === "terminated" ||
      failureOf(inner.cause) !== undefined)
  );
}

function retryAfter(error: unknown): number | undefined {
  const { metadata } = failureOf(error) ?? {};
  const seconds = Number(typeof metadata?.get === "function" ? (metadata.get("retry-after") ?? NaN) : NaN);
  return Number.isFinite(seconds) && seconds >= 0
    ? Math.min(Math.ceil(seconds), retryAfterAtMostS)
    : undefined;
}

function aborted(what: string, reason: unknown): unknown {
  if (!(reason instanceof DeadlineExceeded)) return reason;
  return new Unavailable(`e2b did not ${what} within ${formatDuration(reason.afterMs)}`, {
    cause: reason,
    retryAfterS: defaultRetryAfterS,
  });
}

function failureOf(error: unknown): Failure | undefined {
  return error instanceof Error ? (error as Failure) : undefined;
}
