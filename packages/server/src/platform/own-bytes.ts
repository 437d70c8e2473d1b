/** A smaller part of what it was cut from is copied. */
const leastPart = 1 / 4;

/** @returns bytes that may be kept: a small part of something large would keep all of that in memory. */
export function ownBytes(part: Buffer): Buffer {
  return part.length < part.buffer.byteLength * leastPart ? Buffer.from(part) : part;
}
