/**
 * Gives the memory of bytes that nobody reads any more back at once. Left to the collector, buffers of a body that goes through
 * make it look through everything that lives after each 64 MiB or so, which costs several times what carrying the body does.
 * Only where they are all there is in their memory: of a part of something larger the rest may be somebody's.
 */
export function spend(bytes: Uint8Array): void {
  if (bytes.length === bytes.buffer.byteLength) giveBack(bytes.buffer);
}

/** The same for what a socket has read, which is alone in its memory also where it does not fill it. */
export function spendRead(bytes: Buffer): void {
  // What was put back into a socket was cut off something.
  if (bytes.byteOffset === 0) giveBack(bytes.buffer);
}

function giveBack(memory: ArrayBufferLike): void {
  if (memory instanceof ArrayBuffer && !memory.detached) memory.transfer(0);
}
