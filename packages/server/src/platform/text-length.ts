/** @returns how many characters all texts within a value have, without the names of its fields: what it costs follows from that. */
export function textLength(value: unknown): number {
  if (typeof value === "string") return value.length;
  if (typeof value !== "object" || value === null) return 0;
  let length = 0;
  if (Array.isArray(value)) for (const inner of value) length += textLength(inner);
  else for (const inner of Object.values(value)) length += textLength(inner);
  return length;
}
