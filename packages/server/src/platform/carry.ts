import type { Readable, Writable } from "node:stream";
import { finished } from "node:stream/promises";
import { smallBytes } from "./piece-joiner.ts";

/**
 * As `from.pipe(to)`, but of small pieces one at most waits in `to`, whose bound counts bytes and not pieces: meanwhile `from`,
 * which is to be one that joins what waits in it, is not read.
 * @returns how to stop it.
 */
export function carry(from: Readable, to: Writable): () => void {
  const goOn = (error?: Error | null) => {
    if (!error) from.resume();
  };
  const onDrain = () => goOn();
  const onData = (piece: Buffer) => {
    if (piece.length < smallBytes) {
      from.pause();
      to.write(piece, goOn);
    } else if (!to.write(piece)) {
      from.pause();
      to.once("drain", onDrain);
    }
  };
  const onEnd = () => void to.end();
  from.on("data", onData).once("end", onEnd);
  return () => {
    from.off("data", onData).off("end", onEnd).pause();
    to.off("drain", onDrain);
  };
}

/** Carries all of it. @throws when either stream breaks, or the signal aborts; both are destroyed then. */
export async function carryAll(
  from: Readable,
  to: Writable,
  options: { signal: AbortSignal },
): Promise<void> {
  carry(from, to);
  try {
    await Promise.all([finished(from, options), finished(to, options)]);
  } catch (error) {
    from.destroy();
    to.destroy();
    throw error;
  }
}
