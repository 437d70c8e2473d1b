import type { IncomingMessage } from "node:http";
import { JoinedRequest } from "./joined-request.ts";

/** How long the rest of a body is read on after its refusal was written. */
const patienceMs = 5_000;

/** How many pieces of a few bytes are read of a body that was refused: who sends more has no answer to miss. */
const mostTinyPieces = 4_096;

function isTooManyPieces(request: IncomingMessage): boolean {
  return request instanceof JoinedRequest && request.tinyPieces > mostTinyPieces;
}

/** Whether the request has a body of which some is still to come. */
export function bodyIsUnderWay(
  request: Pick<IncomingMessage, "complete" | "destroyed" | "headers">,
): boolean {
  if (request.complete || request.destroyed) return false;
  const { "content-length": length, "transfer-encoding": encoding } = request.headers;
  return encoding !== undefined || Number(length ?? 0) > 0;
}

/**
 * Of what no operation reads a body of, it is dropped as it comes: it would be kept as long as the answer lasts, and a
 * connection that is not read does not tell that its caller has left.
 */
export function dropUnreadBody(request: IncomingMessage): void {
  if ((request.method === "GET" || request.method === "HEAD") && bodyIsUnderWay(request)) request.resume();
}

/**
 * Ends the connection of a request that was answered before its body was there and does not complete it soon: a byte of it now
 * and then would keep the connection for ever. Until then its bytes are dropped, and it may be used again.
 */
export function endUnlessComplete(request: IncomingMessage, options: { patienceMs?: number } = {}): void {
  if (!bodyIsUnderWay(request)) return;
  const { socket } = request;
  const timer = setTimeout(() => {
    if (!request.complete) socket.destroy();
  }, options.patienceMs ?? patienceMs);
  timer.unref();
  request
    .on("data", () => {
      if (isTooManyPieces(request)) socket.destroy();
    })
    .once("end", () => clearTimeout(timer))
    .resume();
}

/**
 * The refusal of a body that is still being sent: its bytes, then what is left of the body is read and dropped, for a
 * while. A connection that is closed with unread bytes in it is reset, and takes with it the answer that its sender, who
 * looks for one only when everything is sent, has not read yet.
 */
export async function* refusalOfBody(
  answer: Buffer,
  request: IncomingMessage,
  options: { patienceMs?: number } = {},
): AsyncGenerator<Buffer> {
  yield answer;
  if (request.destroyed || request.readableEnded) return;
  await new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, options.patienceMs ?? patienceMs);
    const over = () => {
      clearTimeout(timer);
      resolve();
    };
    request.once("end", over).once("close", over).on("error", over);
    // Who read it may not have let go of it yet; a stream with a listener for "readable" does not flow.
    request.unpipe().removeAllListeners("readable");
    request
      .on("data", () => {
        if (isTooManyPieces(request)) over();
      })
      .resume();
  });
}
