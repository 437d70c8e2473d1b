/** One part of a file, asked for with a Range header. */
export interface ByteRange {
  /** @returns where the part lies in a file of `size` bytes; undefined when the file ends before it. */
  within(size: number): { offset: number; length: number } | undefined;
}

/**
 * Reads a Range header of one part: `bytes=0-99`, `bytes=100-`, `bytes=-50`.
 * @returns undefined for anything else, which is answered with the whole file. RFC 9110, 14.2.
 */
export function parseRange(header: string): ByteRange | undefined {
  const match = /^bytes=\s*(\d{0,15})-(\d{0,15})\s*$/.exec(header);
  if (match === null) return undefined;
  const [, first = "", last = ""] = match;
  if (first === "" && last === "") return undefined;
  if (first === "") return { within: (size) => suffix(size, Number(last)) };
  const offset = Number(first);
  const end = last === "" ? Number.POSITIVE_INFINITY : Number(last);
  if (end < offset) return undefined;
  return {
    within: (size) => (offset >= size ? undefined : { offset, length: Math.min(end + 1, size) - offset }),
  };
}

function suffix(size: number, wanted: number): { offset: number; length: number } | undefined {
  const length = Math.min(size, wanted);
  return length === 0 ? undefined : { offset: size - length, length };
}
