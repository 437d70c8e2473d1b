import { UsageError } from "../exit-codes.ts";

const units = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1_000],
] as const;

/** A span of time in its two largest units: `1h30m`, `45s`; below a second `0s`. */
export function shortDuration(ms: number): string {
  let rest = Math.max(0, Math.floor(ms / 1_000) * 1_000);
  const parts: string[] = [];
  for (const [name, size] of units) {
    const count = Math.floor(rest / size);
    if (parts.length === 1 && count === 0) break;
    if (count === 0) continue;
    parts.push(`${count}${name}`);
    rest -= count * size;
    if (parts.length === 2) break;
  }
  return parts.length === 0 ? "0s" : parts.join("");
}

/** How long something took: `12 ms`, `3.4 s`, `2m5s`. */
export function elapsed(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(1)} s`;
  return shortDuration(ms);
}

/** `512 B`, `1.5 KiB`, `20.0 MiB`. */
export function byteSize(bytes: number): string {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  const step = bytes < 1 ? 0 : Math.min(Math.floor(Math.log2(bytes) / 10), names.length - 1);
  return step === 0 ? `${Math.round(bytes)} B` : `${(bytes / 2 ** (10 * step)).toFixed(1)} ${names[step]}`;
}

/** @throws UsageError for what is no port. */
export function parsePort(text: string): number {
  const port = Number(text);
  if (/^\d{1,5}$/.test(text) && port >= 1 && port <= 65_535) return port;
  throw new UsageError(`${text} is not a port: a whole number from 1 to 65535`);
}
