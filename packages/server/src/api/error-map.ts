import { Readable } from "node:stream";
import type { ErrorCode } from "@alcove/wire";
import type { FastifyError, FastifyReply, FastifyRequest } from "fastify";
import { CallerGone, DeadlineExceeded, ShuttingDown } from "../platform/deadline.ts";
import type { Logger } from "../platform/logger.ts";
import { BadRequest, DomainError, Unavailable } from "../ports/errors.ts";
import { addressOf } from "./address.ts";
import { bodyIsUnderWay, refusalOfBody } from "./refused-body.ts";
import { sendJson } from "./send-json.ts";
import { validationMessage } from "./validation.ts";

/** The only place that knows statuses. docs/api/README.md. */
export const httpStatus = {
  bad_request: 400,
  unauthorized: 401,
  forbidden: 403,
  not_found: 404,
  method_not_allowed: 405,
  timeout: 408,
  conflict: 409,
  too_large: 413,
  unsupported_media_type: 415,
  range_not_satisfiable: 416,
  upgrade_required: 426,
  resource_limit: 429,
  provider_error: 500,
  internal: 500,
  bad_gateway: 502,
  unavailable: 503,
  gateway_timeout: 504,
  remote_worker_rpc_unavailable: 503,
  storage_full: 507,
} as const satisfies Record<ErrorCode, number>;

/** Of what Fastify says, which may have all of a path before what is wrong with it. */
const longestQuote = 300;

/** What the client may know of an error; anything unexpected is told blandly. */
export function toDomainError(error: unknown): DomainError {
  if (error instanceof DomainError) return error;
  if (error instanceof ShuttingDown)
    return new Unavailable("the service is shutting down; try again", { cause: error, retryAfterS: 1 });
  if (error instanceof DeadlineExceeded)
    return new Unavailable(`the operation took longer than ${error.afterMs} ms`, { cause: error });
  if (isFastifyError(error)) return fromFastify(error);
  return new DomainError("internal", "an internal error occurred; the log has it under the request id", {
    cause: error,
  });
}

function isFastifyError(error: unknown): error is FastifyError {
  return error instanceof Error && ("validation" in error || "statusCode" in error);
}

function fromFastify(error: FastifyError): DomainError {
  if (error.validation !== undefined) return new BadRequest(validationMessage(error), { cause: error });
  switch (error.statusCode) {
    case 413:
      return new DomainError("too_large", "the body is too large", { cause: error });
    case 415:
      return new DomainError(
        "unsupported_media_type",
        "the body's Content-Type is not supported here; send application/json",
        { cause: error },
      );
    default:
      if (error.statusCode !== undefined && error.statusCode >= 400 && error.statusCode < 500)
        return new BadRequest(`the request cannot be read: ${error.message.slice(-longestQuote)}`, {
          cause: error,
        });
      return new DomainError("internal", "an internal error occurred; the log has it under the request id", {
        cause: error,
      });
  }
}

export function errorBody(error: DomainError): Record<string, unknown> {
  return { ...error.details, code: error.code, message: error.message };
}

/**
 * Answers an error, and logs it where it is ours or a provider's; what the caller got wrong is told by the access log.
 * @param options.unanswered gets what is not answered because its caller left.
 */
export function errorHandler(
  logger: Logger,
  options: { unanswered: (request: FastifyRequest, reply: FastifyReply) => void },
) {
  return (error: unknown, request: FastifyRequest, reply: FastifyReply): void => {
    if (callerIsGone(error, request, reply) || reply.raw.headersSent) {
      options.unanswered(request, reply);
      reply.hijack();
      reply.raw.destroy();
      return;
    }
    const domain = toDomainError(error);
    const status = httpStatus[domain.code];
    reply.refusal = { code: domain.code, message: domain.message, remoteAddr: addressOf(request) };
    if (status >= 500) logFailure(logger, request, { error, domain, status });
    if (domain.retryAfterS !== undefined) reply.header("retry-after", String(domain.retryAfterS));
    const execId = domain.details.exec_id;
    if (typeof execId === "string") reply.header("x-exec-id", execId);
    if (!request.raw.complete) reply.header("connection", "close");
    reply.code(status);
    if (bodyIsUnderWay(request.raw)) {
      const answer = Buffer.from(JSON.stringify(errorBody(domain)));
      reply.type("application/json; charset=utf-8").header("content-length", answer.length);
      reply.send(Readable.from(refusalOfBody(answer, request.raw), { objectMode: false }));
    } else sendJson(reply, errorBody(domain));
  };
}

/** A caller that leaves in the middle of its upload shows as a broken body. */
function callerIsGone(error: unknown, request: FastifyRequest, reply: FastifyReply): boolean {
  return (
    error instanceof CallerGone ||
    reply.raw.destroyed ||
    (request.raw.destroyed && !request.raw.complete) ||
    reply.callUnderWay?.signal.reason instanceof CallerGone
  );
}

function logFailure(
  logger: Logger,
  request: FastifyRequest,
  failure: { error: unknown; domain: DomainError; status: number },
): void {
  const { error, domain, status } = failure;
  const fields = {
    request_id: request.id,
    method: request.method,
    path: pathOf(request),
    status,
    code: domain.code,
  };
  // Programs in sandboxes that fail are their owners' to look at.
  if (domain.code === "bad_gateway" || domain.code === "gateway_timeout")
    logger.info({ ...fields, error: domain.message }, "request failed");
  // That something is unavailable or full for now is no fault to be searched for by its stack.
  else if (status === 503 || status === 507)
    logger.warn({ ...fields, error: domain.message }, "request failed");
  else logger.error({ ...fields, err: error }, "request failed");
}

/**
 * The path without its query, which may hold what logs should not, as may the host of an absolute address; and without a fragment,
 * which routes leave out as well.
 */
export function pathOf(request: FastifyRequest): string {
  return /^(?:[a-z][a-z0-9+.-]*:\/\/[^/?#]*)?([^?#]*)/i.exec(request.url)?.[1] ?? "";
}
