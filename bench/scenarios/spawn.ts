import { bubblewrap } from "../floors.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import { inRounds, median } from "../rounds.ts";
import type { Row } from "../row.ts";
import { startService } from "../service.ts";
import { ms, type Summary, summarize } from "../stats.ts";

interface Spawned {
  id: string;
}

const echo = { command: "echo ready" };

/** Spawn to first output and destroy on native, one at a time, then a hundred at once. */
export async function nativeSpawn(): Promise<Row[]> {
  const bwrap = await bubblewrap(60);
  const floor = bwrap === undefined ? undefined : summarize(bwrap);
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  const client = new KeepAliveClient(service.url);
  const destroyed: number[] = [];
  const spawned: number[] = [];
  const ready: number[] = [];
  for (let index = 0; index < 70; index++) {
    const started = performance.now();
    const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", {});
    const up = performance.now();
    await client.expect(200, "POST", `/sandboxes/${id}/exec`, echo);
    const answered = performance.now();
    await client.expect(200, "DELETE", `/sandboxes/${id}`);
    if (index < 10) continue;
    spawned.push(up - started);
    ready.push(answered - started);
    destroyed.push(performance.now() - answered);
  }
  client.close();
  const first = summarize(ready);
  const gone = summarize(destroyed);
  const burst = await hundredAtOnce(service.url);
  return [
    {
      what: "native: spawn to first output, cold",
      figure: `p50 ${ms(first.p50)}, p95 ${ms(first.p95)} (spawn alone p50 ${ms(summarize(spawned).p50)})`,
      floor: floor === undefined ? "bwrap is not installed" : `bare bwrap true p50 ${ms(floor.p50)}`,
      budget: "p50 ≤ 10 ms, p95 ≤ 20 ms",
      met: first.p50 <= 10 && first.p95 <= 20,
      data: { p50: first.p50, p95: first.p95, ...(floor === undefined ? {} : { floor: floor.p50 }) },
    },
    {
      what: "native: destroy",
      figure: `p50 ${ms(gone.p50)}, p95 ${ms(gone.p95)}`,
      floor: "-",
      budget: "p50 ≤ 10 ms",
      met: gone.p50 <= 10,
      data: { p50: gone.p50, p95: gone.p95 },
    },
    {
      what: "native: 100 × spawn + exec at once",
      figure: `${burst.succeeded} succeeded, p50 ${ms(burst.p50)}, p95 ${ms(burst.p95)}`,
      floor: "-",
      budget: "all, p95 ≤ 800 ms",
      met: burst.succeeded === 100 && burst.p95 <= 800,
      data: { succeeded: burst.succeeded, p50: burst.p50, p95: burst.p95 },
    },
  ];
}

async function hundredAtOnce(url: string): Promise<{ succeeded: number; p50: number; p95: number }> {
  const clients = Array.from({ length: 100 }, () => new KeepAliveClient(url));
  await Promise.all(clients.map((client) => client.expect(200, "GET", "/live")));
  const results = await Promise.allSettled(
    clients.map(async (client) => {
      const started = performance.now();
      const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", {});
      await client.expect(200, "POST", `/sandboxes/${id}/exec`, echo);
      return { id, elapsedMs: performance.now() - started };
    }),
  );
  const succeeded = results.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
  await Promise.all(
    succeeded.map(({ id }, index) => clients[index]?.expect(200, "DELETE", `/sandboxes/${id}`)),
  );
  for (const client of clients) client.close();
  const summary = summarize(succeeded.map(({ elapsedMs }) => elapsedMs));
  return { succeeded: succeeded.length, p50: summary.p50, p95: summary.p95 };
}

const mockRounds = 5;
const warmUpMs = 2_000;
const roundMs = 2_000;

/** Spawn and destroy pairs on mock: what the control plane itself costs, without its log and with it. */
export async function controlPlane(): Promise<Row[]> {
  const settings = { ALCOVE_PROVIDERS_DEFAULT: "mock", ALCOVE_PROVIDERS_MOCK_ENABLED: "true" };
  await using quiet = await startService({ ...settings, ALCOVE_LOGGING_LEVEL: "warn" });
  await using logging = await startService({ ...settings, ALCOVE_LOGGING_LEVEL: "info" });
  const latencies = { quiet: [] as Summary[], logging: [] as Summary[] };
  const measure = (name: keyof typeof latencies, url: string) => async () => {
    const samples = await spawnDestroyPairs(url, roundMs);
    latencies[name].push(summarize(samples));
    return samples.length / (roundMs / 1_000);
  };
  for (const { url } of [quiet, logging]) await spawnDestroyPairs(url, warmUpMs);
  const rates = await inRounds(mockRounds, {
    quiet: measure("quiet", quiet.url),
    logging: measure("logging", logging.url),
  });
  const row = (what: string, name: keyof typeof latencies): Row => {
    const rate = median(rates[name]);
    const [p50, p99] = [
      median(latencies[name].map((each) => each.p50)),
      median(latencies[name].map((each) => each.p99)),
    ];
    return {
      what,
      figure: `${Math.round(rate)} requests/s, p50 ${ms(p50)}, p99 ${ms(p99)}`,
      floor: "-",
      budget: "≥ 8,000 requests/s, p99 ≤ 18 ms",
      met: rate >= 8_000 && p99 <= 18,
      data: { requestsPerSecond: rate, p50, p99 },
    };
  };
  return [
    row("mock: spawn + destroy pairs, 64 clients", "quiet"),
    row("mock: the same at the default log level", "logging"),
  ];
}

/** @returns the milliseconds of each request that began in time. */
async function spawnDestroyPairs(url: string, durationMs: number): Promise<number[]> {
  const clients = Array.from({ length: 64 }, () => new KeepAliveClient(url));
  const until = performance.now() + durationMs;
  const requests: number[] = [];
  const timed = async <T>(request: () => Promise<T>): Promise<T> => {
    const started = performance.now();
    const answer = await request();
    requests.push(performance.now() - started);
    return answer;
  };
  const loop = async (client: KeepAliveClient) => {
    while (performance.now() < until) {
      const { id } = await timed(() => client.expect<Spawned>(201, "POST", "/sandboxes", {}));
      await timed(() => client.expect(200, "DELETE", `/sandboxes/${id}`));
    }
  };
  await Promise.all(clients.map(loop));
  for (const client of clients) client.close();
  return requests;
}
