import type { IncomingMessage } from "node:http";

/** How long the rest of a body is read on after its refusal was written. */
const patienceMs = 5_000;

/** Whether the request has a body of which some is still to come. */
export function bodyIsUnderWay(
  request: Pick<IncomingMessage, "complete" | "destroyed" | "headers">,
): boolean {
  if (request.complete || request.destroyed) return false;
  const { "content-length": length, "transfer-encoding": encoding } = request.headers;
  return encoding !== undefined || Number(length ?? 0) > 0;
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
    request.on("data", () => undefined).resume();
  });
}
