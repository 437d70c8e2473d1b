import type { Readable, Writable } from "node:stream";
import { finished } from "node:stream/promises";
import { smallBytes } from "./piece-joiner.ts";
import { spend } from "./spent-bytes.ts";

/**
 * As `from.pipe(to)`, but of small pieces one at most waits in `to`, whose bound counts bytes and not pieces: meanwhile `from`,
 * which is to be one that joins what waits in it, is not read.
 * @param options.spends gives the memory of each piece back when it was written: `from` keeps none that it gave, and `to` none
 * that it has called back for.
 * @returns how to stop it.
 */
export function carry(from: Readable, to: Writable, options: { spends?: boolean } = {}): () => void {
  const goOn = (error?: Error | null) => {
    if (!error) from.resume();
  };
  const onWritten = (piece: Buffer) => (error?: Error | null) => {
    if (!error) spend(piece);
  };
  const write = (piece: Buffer) => (options.spends ? to.write(piece, onWritten(piece)) : to.write(piece));
  const onDrain = () => goOn();
  const onData = (piece: Buffer) => {
    if (piece.length < smallBytes) {
      from.pause();
      to.write(piece, goOn);
    } else if (!write(piece)) {
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

/**
 * Carries all of it.
 * @param options.onBreak called when either breaks, before both are destroyed.
 * @throws when either stream breaks, or the signal aborts; both are destroyed then.
 */
export async function carryAll(
  from: Readable,
  to: Writable,
  { signal, spends = false, onBreak }: { signal: AbortSignal; spends?: boolean; onBreak?: () => void },
): Promise<void> {
  carry(from, to, { spends });
  try {
    await Promise.all([finished(from, { signal }), finished(to, { signal })]);
  } catch (error) {
    onBreak?.();
    from.destroy();
    to.destroy();
    throw error;
  }
}
