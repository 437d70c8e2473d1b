import { byteSize } from "../terminal/text.ts";

/** `12.0 MiB of 512.0 MiB`; a dash for what is not known. */
export function usedOf(used: number | undefined, limit: number | undefined, unit = byteSize): string {
  if (used === undefined) return "-";
  return limit === undefined || limit === 0 ? unit(used) : `${unit(used)} of ${unit(limit)}`;
}
