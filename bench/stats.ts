export interface Summary {
  count: number;
  p50: number;
  p95: number;
  p99: number;
  max: number;
}

/** @param samples at least one number. */
export function summarize(samples: readonly number[]): Summary {
  const sorted = [...samples].sort((a, b) => a - b);
  const at = (q: number) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] ?? Number.NaN;
  return { count: sorted.length, p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1) };
}

/** Runs `operation` `count` times after `warmup` unmeasured runs. @returns milliseconds of each. */
export async function timeEach(
  options: { count: number; warmup: number },
  operation: (index: number) => Promise<unknown>,
): Promise<number[]> {
  for (let index = 0; index < options.warmup; index++) await operation(-1 - index);
  const samples: number[] = [];
  for (let index = 0; index < options.count; index++) {
    const started = performance.now();
    await operation(index);
    samples.push(performance.now() - started);
  }
  return samples;
}

/** Runs `operation` from `clients` loops until `durationMs` passed. @returns operations per second and each one's milliseconds. */
export async function sustain(
  options: { clients: number; durationMs: number },
  operation: (client: number) => Promise<unknown>,
): Promise<{ perSecond: number; samples: number[] }> {
  const samples: number[] = [];
  const started = performance.now();
  const loop = async (client: number) => {
    while (performance.now() - started < options.durationMs) {
      const before = performance.now();
      await operation(client);
      samples.push(performance.now() - before);
    }
  };
  await Promise.all(Array.from({ length: options.clients }, (_, client) => loop(client)));
  return { perSecond: (samples.length * 1_000) / (performance.now() - started), samples };
}

export const ms = (value: number) => `${value.toFixed(value < 10 ? 2 : 1)} ms`;
export const percent = (share: number) => `${(100 * share).toFixed(1)} %`;
export const perSecond = (value: number) => `${Math.round(value)}/s`;
export const megabytesPerSecond = (bytes: number, elapsedMs: number) =>
  `${Math.round(bytes / 1_000 / elapsedMs)} MB/s`;
