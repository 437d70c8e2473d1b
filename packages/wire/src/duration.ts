const groupPattern = /(\d+(?:\.\d+)?)(ms|h|m|s)/y;
const unitMs = { h: 3_600_000, m: 60_000, s: 1_000, ms: 1 } as const;
const maxDurationMs = 100 * 366 * 24 * unitMs.h;

/**
 * Reads a duration such as `30s`, `1h30m` or `500ms`: number and unit groups, units `h`, `m`, `s`, `ms`. docs/api/README.md.
 * @returns milliseconds, rounded to whole ones, or undefined when the text is not a duration (a sign, a bare number,
 *   an unknown unit, an empty text). What is shorter than one millisecond counts as one, what is longer than a hundred
 *   years as that.
 */
export function parseDuration(text: string): number | undefined {
  if (text.length === 0 || text.length > 64) return undefined;
  let total = 0;
  groupPattern.lastIndex = 0;
  while (groupPattern.lastIndex < text.length) {
    const group = groupPattern.exec(text);
    if (group === null) return undefined;
    total += Number(group[1]) * unitMs[group[2] as keyof typeof unitMs];
  }
  return total === 0 ? 0 : Math.min(Math.max(1, Math.round(total)), maxDurationMs);
}

/** What was probably meant by a text that is no duration, as the end of a sentence that says so. */
export function durationMeant(text: string): string {
  const [, count = "", unit = ""] = /^\s*(\d{1,6}(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text) ?? [];
  if (count === "") return "";
  if (/^(?:d|days?)$/i.test(unit)) return `; days are no unit, write ${Number(count) * 24}h`;
  if (unit === "") return `; it has no unit, ${count}s are seconds`;
  const known = { s: /^s(?:ec|ecs|econds?)?$/i, m: /^m(?:in|ins|inutes?)?$/i, h: /^h(?:rs?|ours?)?$/i };
  const meant = Object.entries(known).find(([, spelled]) => spelled.test(unit))?.[0];
  return meant === undefined ? "; units are h, m, s and ms" : `; write ${count}${meant}`;
}

/** Writes milliseconds in Go's style: `2h0m0s`, `1m30s`, `12.5ms`, `0s`. docs/api/README.md. */
export function formatDuration(ms: number): string {
  if (!Number.isFinite(ms) || ms <= 0) return "0s";
  if (ms < 1_000) return `${trimNumber(ms, 3)}ms`;
  const hours = Math.floor(ms / unitMs.h);
  const minutes = Math.floor((ms % unitMs.h) / unitMs.m);
  const seconds = trimNumber((ms % unitMs.m) / unitMs.s, 3);
  if (hours > 0) return `${hours}h${minutes}m${seconds}s`;
  if (minutes > 0) return `${minutes}m${seconds}s`;
  return `${seconds}s`;
}

function trimNumber(value: number, decimals: number): string {
  return String(Number(value.toFixed(decimals)));
}
