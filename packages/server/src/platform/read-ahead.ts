import type { Readable } from "node:stream";

/**
 * How much of a stream is read before it is wanted, bytes. Node takes that when a stream is made, and has no way of its own to say
 * otherwise later: this is the field that it goes by, and `readableHighWaterMark` tells.
 */
export function setReadAhead(stream: Readable, bytes: number): void {
  const { _readableState: state } = stream as Readable & { _readableState?: { highWaterMark: number } };
  if (state !== undefined) state.highWaterMark = bytes;
}
