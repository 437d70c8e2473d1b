/** A smaller part of what it was cut from is copied. */
const leastPart = 1 / 4;

/** @returns bytes that may be kept: a small part of something large would keep all of that in memory. */
export function ownBytes(part: Buffer): Buffer {
  return part.length < part.buffer.byteLength * leastPart ? copyOf(part) : part;
}

/** @returns a copy that shares its memory with nothing: one of Buffer.from would keep a piece of Node's pool with what else is in it. */
export function copyOf(bytes: Uint8Array): Buffer {
  const copy = Buffer.allocUnsafeSlow(bytes.length);
  copy.set(bytes);
  return copy;
}
