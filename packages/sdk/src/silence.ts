import type { IncomingMessage } from "node:http";
import { clientError } from "./errors.ts";

/** The service sends something this often over whatever may stay open and quiet. */
const lifeMs = 15_000;
const missedThatTell = 3;
export const silenceText = "nothing has come over it for 45 s, where the service sends something every 15 s";

/**
 * Calls back when a connection brings nothing more, as behind a proxy that swallows what it gets. Looks at intervals, so
 * that neither a process that was held up nor a machine that slept takes its own silence for the other's.
 * @param options.missed is told of the first interval without bytes, and may ask for some.
 * @param options.heldUp whether it is this side that takes nothing: then nothing can come.
 * @returns ends it.
 */
export function onSilence(options: {
  bytesRead: () => number;
  heldUp: () => boolean;
  missed?: () => void;
  silent: () => void;
}): () => void {
  const { bytesRead, heldUp, silent } = options;
  let seen = bytesRead();
  let missed = 0;
  const timer = setInterval(() => {
    const bytes = bytesRead();
    missed = bytes === seen && !heldUp() ? missed + 1 : 0;
    seen = bytes;
    if (missed === 1) options.missed?.();
    if (missed < missedThatTell) return;
    clearInterval(timer);
    silent();
  }, lifeMs);
  timer.unref();
  return () => clearInterval(timer);
}

/** An event stream that falls silent breaks off with `cut`. */
export function cutWhenSilent(response: IncomingMessage): void {
  const { socket } = response;
  const end = onSilence({
    bytesRead: () => socket.bytesRead,
    // What has come is not taken yet.
    heldUp: () => response.readableLength > 0,
    silent: () => response.destroy(clientError("cut", `the stream broke: ${silenceText}`)),
  });
  response.once("close", end);
}
