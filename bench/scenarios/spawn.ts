import { readdir } from "node:fs/promises";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { bubblewrap } from "../floors.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import { launcherFloor } from "../launcher-floor.ts";
import { type Call, timeCalls } from "../light-client.ts";
import { inRounds, median, medianRatio } from "../rounds.ts";
import type { Row } from "../row.ts";
import { type Service, startService } from "../service.ts";
import { ms, type Summary, summarize } from "../stats.ts";

interface Spawned {
  id: string;
}

const echo = { command: "echo ready" };
/** A sandbox's life. */
const life: readonly Call[] = [
  { method: "POST", path: "/sandboxes", body: {} },
  { method: "POST", path: "/sandboxes/{id}/exec", body: echo },
  { method: "DELETE", path: "/sandboxes/{id}" },
];

/** What the lives of sandboxes took, milliseconds. */
class Lives {
  readonly spawned: number[] = [];
  readonly ready: number[] = [];
  readonly destroyed: number[] = [];

  add([spawned = Number.NaN, answered = Number.NaN, destroyed = Number.NaN]: readonly number[]): void {
    this.spawned.push(spawned);
    this.ready.push(spawned + answered);
    this.destroyed.push(destroyed);
  }
}

/**
 * In a row, of sandboxes as of the floor's processes; the first of them after a pause, which leaves nothing in the processors' caches. No
 * more than a service makes ahead of one kind: the next would be a cold one.
 */
const inRow = 3;
const freshRounds = 17;
/** Three calls each, until the service is a warm one. */
const warmupLives = 330;
const measuredRounds = 40;
/** Longer than what nobody waits for is put off: none of it falls into a pause. */
const unbroken = 60;
const unbrokenRounds = 3;
const burst = 100;
const burstRounds = 5;

/** Spawn to first output and destroy on native, cold and from prepared sandboxes, one at a time, in turns with the floor; then a hundred at once. */
export async function nativeSpawn(): Promise<Row[]> {
  await using cold = await startService({
    ALCOVE_PROVIDERS_DEFAULT: "native",
    ALCOVE_PROVIDERS_NATIVE_PREPARED: "0",
  });
  await using prepared = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  await timeCalls(life, { url: prepared.url, count: 1 });
  const fresh = await inTurns(freshRounds, { cold, prepared });
  for (const { url } of [cold, prepared]) await timeCalls(life, { url, count: warmupLives });
  const warm = await inTurns(measuredRounds, { cold, prepared });
  const gone = summarize(warm.cold.destroyed);
  const pauseless = { lives: new Lives(), floors: [] as number[] };
  for (let round = 0; round < unbrokenRounds; round++) {
    pauseless.floors.push(...((await bubblewrap(unbroken)) ?? []));
    const lives = await timeCalls(life, { url: cold.url, count: unbroken });
    for (const each of lives) pauseless.lives.add(each);
  }
  return [
    ...rowsOf("cold", warm.cold, warm.floors, { spawn: 1.3, ready: 1.7 }),
    ...rowsOf("prepared", warm.prepared, warm.floors, { spawn: 0.6, ready: 1 }),
    ...rowsOf("cold, after a pause", warm.coldAfterPause, warm.floorsAfterPause),
    ...rowsOf("prepared, after a pause", warm.preparedAfterPause, warm.floorsAfterPause),
    ...rowsOf(`cold, ${unbroken} without a pause`, pauseless.lives, pauseless.floors),
    ...rowsOf("cold, fresh service", fresh.cold, fresh.floors),
    ...rowsOf("prepared, fresh service", fresh.prepared, fresh.floors),
    {
      what: "native: destroy",
      figure: `p50 ${ms(gone.p50)}, p95 ${ms(gone.p95)}`,
      floor: "-",
      budget: "p50 ≤ 10 ms",
      met: gone.p50 <= 10,
      data: { p50: gone.p50, p95: gone.p95 },
    },
    await burstRow(cold.url),
  ];
}

/** So many rounds of the floor, cold and prepared in turns, `inRow` of each. */
async function inTurns(rounds: number, { cold, prepared }: { cold: Service; prepared: Service }) {
  const taken = {
    cold: new Lives(),
    prepared: new Lives(),
    coldAfterPause: new Lives(),
    preparedAfterPause: new Lives(),
    floors: [] as number[],
    floorsAfterPause: [] as number[],
  };
  const live = async ({ url }: Service, all: Lives, afterPause: Lives) => {
    const lives = await timeCalls(life, { url, count: inRow });
    for (const each of lives) all.add(each);
    afterPause.add(lives[0] ?? []);
  };
  for (let round = 0; round < rounds; round++) {
    // What was claimed in the round before is made again meanwhile, which the floor and the cold ones would have beside them.
    await stocked(prepared);
    const floors = (await bubblewrap(inRow)) ?? [];
    taken.floors.push(...floors);
    taken.floorsAfterPause.push(...floors.slice(0, 1));
    await live(cold, taken.cold, taken.coldAfterPause);
    await stocked(prepared);
    await live(prepared, taken.prepared, taken.preparedAfterPause);
  }
  return taken;
}

/** Waits until the service has made ahead what it keeps, and is quiet. */
async function stocked({ dataDir }: Service): Promise<void> {
  const until = performance.now() + 10_000;
  while (performance.now() < until) {
    await delay(50);
    const names = await readdir(path.join(dataDir, "runtimes", "native"));
    if (names.filter((name) => name.startsWith("prepared-")).length >= 4) break;
  }
  await delay(50);
}

function rowsOf(
  kind: string,
  { spawned, ready }: Lives,
  floors: readonly number[],
  budgets?: { spawn: number; ready: number },
): Row[] {
  const floor = floors.length === 0 ? undefined : summarize(floors).p50;
  const row = (what: string, samples: readonly number[], budget: number | undefined): Row => {
    const { p50, p95 } = summarize(samples);
    const ratio = floor === undefined ? undefined : p50 / floor;
    return {
      what: `native: ${what}, ${kind}`,
      figure: `p50 ${ms(p50)}, p95 ${ms(p95)}${ratio === undefined ? "" : ` (${ratio.toFixed(2)} ×)`}`,
      floor: floor === undefined ? "bwrap is not installed" : `bare bwrap true p50 ${ms(floor)}`,
      budget: budget === undefined ? "-" : `≤ ${budget} ×`,
      met: budget === undefined || ratio === undefined ? undefined : ratio <= budget,
      data: { p50, p95, ...(floor === undefined ? {} : { floor }) },
    };
  };
  return [row("spawn", spawned, budgets?.spawn), row("spawn to first output", ready, budgets?.ready)];
}

async function burstRow(url: string): Promise<Row> {
  await using stack = new AsyncDisposableStack();
  // A machine without a static C library has no such program.
  const floor = await launcherFloor().then(
    (made) => stack.use(made),
    (error: Error) => error,
  );
  let succeeded = burst;
  const p50s: number[] = [];
  const service = async () => {
    const times = await burstOn(url);
    succeeded = Math.min(succeeded, times.length);
    const { p50, p95 } = summarize(times);
    p50s.push(p50);
    return p95;
  };
  const launcher = async () =>
    floor instanceof Error ? Number.NaN : summarize(await floor.launch(burst)).p95;
  const p95s = await inRounds(burstRounds, { launcher, service });
  const ratio = medianRatio(p95s.service, p95s.launcher);
  const [p50, p95, alone] = [median(p50s), median(p95s.service), median(p95s.launcher)];
  const without = floor instanceof Error;
  return {
    what: `native: ${burst} × spawn + exec at once, cold`,
    figure: `${succeeded} succeeded, p50 ${ms(p50)}, p95 ${ms(p95)}${without ? "" : ` (${ratio.toFixed(2)} ×)`}`,
    floor: without
      ? `none: ${floor.message.split("\n")[0]}`
      : `the launcher alone, \`true\` for the agent, p95 ${ms(alone)}`,
    budget: "all, p95 ≤ 1.6 × and ≤ 800 ms",
    met: succeeded === burst && (without || ratio <= 1.6) && p95 <= 800,
    data: { succeeded, p50, p95, ...(without ? {} : { floor: alone, ratio }) },
  };
}

/** @returns the milliseconds until each sandbox had run its first command, of those that came to it. */
async function burstOn(url: string): Promise<number[]> {
  const clients = Array.from({ length: burst }, () => new KeepAliveClient(url));
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
  return succeeded.map(({ elapsedMs }) => elapsedMs);
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
