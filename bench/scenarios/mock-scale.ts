import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Harness } from "../../packages/server/src/core/testing/harness.ts";
import { ScriptedProvider } from "../../packages/server/src/core/testing/scripted-provider.ts";
import { systemClock } from "../../packages/server/src/platform/system-clock.ts";
import { SqliteStore } from "../../packages/server/src/stores/sqlite/index.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import { inRounds, median, medianRatio } from "../rounds.ts";
import type { Row } from "../row.ts";
import { projectRoot, type Service, startService } from "../service.ts";
import { ms } from "../stats.ts";

const many = 10_000;
const few = 10;
/** Of those that live, a page has as many on both services. */
const page = few;
/** From the first spawn until all come due: filling, measuring, and a pass of the reconciler lie in between. */
const lifeMs = 150_000;
const passMs = 62_000;
const rounds = 10;
const callsOfARound = 200;
const mostTimes = 1.3;
const longestTurn = 50;

interface Spawned {
  id: string;
}
interface Turn {
  used: number;
  at: number;
}

/** What ten thousand sandboxes cost against ten: a call where it answers the same, each of them where all have to be dealt with. */
export async function mockScale(): Promise<Row[]> {
  const folder = await mkdtemp(path.join(tmpdir(), "alcove-bench-turns-"));
  try {
    await using none = await open(folder, "few");
    await using full = await open(folder, "many");
    // That of its start.
    await full.longestTurn();
    const dueAt = new Date(Date.now() + lifeMs);
    const { service } = full;
    await fill(service, many, dueAt);
    await fill(none.service, few, dueAt);
    const turns = { filling: await full.longestTurn() };
    const calls = await timeCalls(none.service, service);
    const ofCalls = await full.longestTurn();
    // The passes of a minute, the others' guards and sweeps with them.
    await delay(passMs);
    const ofPass = await full.longestTurn();
    const expiry = await timeExpiry(none.service, service, dueAt);
    const all = { ...turns, calls: ofCalls, pass: ofPass, expiry: await full.longestTurn() };
    return [...calls, await passRow(), expiry, turnsRow(all)];
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function open(
  folder: string,
  name: string,
): Promise<AsyncDisposable & { service: Service; longestTurn(): Promise<Turn> }> {
  const file = path.join(folder, name);
  const service = await startService(
    { ALCOVE_PROVIDERS_DEFAULT: "mock", ALCOVE_PROVIDERS_MOCK_ENABLED: "true", BENCH_TURNS: file },
    { nodeFlags: ["--import", path.join(projectRoot, "bench", "turns.mjs")] },
  );
  let told = 0;
  return {
    service,
    longestTurn: async () => {
      process.kill(service.pid, "SIGUSR2");
      told += 1;
      for (;;) {
        const lines = (await readFile(file, "utf8").catch(() => ""))
          .split("\n")
          .filter((line) => line !== "");
        if (lines.length >= told) return JSON.parse(lines.at(-1) ?? "") as Turn;
        await delay(10);
      }
    },
    [Symbol.asyncDispose]: () => service[Symbol.asyncDispose](),
  };
}

async function fill(service: Service, count: number, dueAt: Date): Promise<void> {
  const clients = Array.from({ length: 32 }, () => new KeepAliveClient(service.url));
  let next = 0;
  await Promise.all(
    clients.map(async (client) => {
      while (next < count) {
        next += 1;
        await client.expect(201, "POST", "/sandboxes", { ttl: `${dueAt.getTime() - Date.now()}ms` });
      }
      client.close();
    }),
  );
}

/** In blocks by turns: processor time of the service, which other programs change less than an answer's time. */
async function timeCalls(none: Service, full: Service): Promise<Row[]> {
  const found: Row[] = [];
  const middle = await middlePage(full);
  const calls: Record<string, { method: string; paths: [string, string]; body?: object }> = {
    "a page of a list": { method: "GET", paths: [`/sandboxes?limit=${page}`, `/sandboxes?limit=${page}`] },
    "a page in the middle of a list": { method: "GET", paths: [`/sandboxes?limit=${page}`, middle] },
    "an admission": { method: "POST", paths: ["/sandboxes/admission", "/sandboxes/admission"], body: {} },
    "one of them": {
      method: "GET",
      paths: [`/sandboxes/${await anyOf(none)}`, `/sandboxes/${await anyOf(full)}`],
    },
  };
  for (const [what, { method, paths, body }] of Object.entries(calls)) {
    const block = (service: Service, path: string) => async () => {
      const client = new KeepAliveClient(service.url);
      const before = await usedMs(service.pid);
      for (let call = 0; call < callsOfARound; call++) await client.expect(200, method, path, body);
      client.close();
      return ((await usedMs(service.pid)) - before) / callsOfARound;
    };
    const [few, many] = [block(none, paths[0]), block(full, paths[1])];
    // As warm as each other.
    for (let warm = 0; warm < 5; warm++) for (const run of [few, many]) await run();
    const seen = await inRounds(rounds, { few, many });
    found.push(rowOf(what, "a call", { ...seen, ratio: medianRatio(seen.many, seen.few) }));
  }
  return found;
}

async function anyOf(service: Service): Promise<string> {
  const client = new KeepAliveClient(service.url);
  const [found] = await client.expect<Spawned[]>(200, "GET", "/sandboxes?limit=1");
  client.close();
  return found?.id ?? "";
}

async function middlePage(service: Service): Promise<string> {
  let cursor = "";
  for (let seen = 0; seen < many / 2; seen += 1_000) {
    const answer = await fetch(
      `${service.url}/api/v1/sandboxes?limit=1000${cursor === "" ? "" : `&cursor=${cursor}`}`,
    );
    await answer.arrayBuffer();
    cursor = encodeURIComponent(answer.headers.get("x-next-cursor") ?? "");
  }
  return `/sandboxes?limit=${page}&cursor=${cursor}`;
}

/** All of either come due at the same moment. */
async function timeExpiry(none: Service, full: Service, dueAt: Date): Promise<Row> {
  await delay(Math.max(0, dueAt.getTime() - Date.now() - 500));
  const untilGone = async (service: Service, count: number) => {
    const client = new KeepAliveClient(service.url);
    const before = await usedMs(service.pid);
    await delay(dueAt.getTime() - Date.now());
    while ((await client.expect<Spawned[]>(200, "GET", "/sandboxes?limit=1")).length > 0) await delay(50);
    client.close();
    return ((await usedMs(service.pid)) - before) / count;
  };
  const [alone, among] = await Promise.all([untilGone(none, few), untilGone(full, many)]);
  const overMs = Date.now() - dueAt.getTime();
  const spent = { few: [alone], many: [among] };
  const ratio = medianRatio(spent.many, spent.few);
  const row = rowOf("expiry of all at once", "each", { ...spent, ratio });
  return { ...row, figure: `${row.figure}; all gone after ${ms(overMs)}`, data: { ...row.data, overMs } };
}

/** Of a pass alone nothing outside of the service tells: its parts run here, on a database of their own. */
async function passRow(): Promise<Row> {
  await using none = await livesOf(few);
  await using full = await livesOf(many);
  const each = (of: Lives, count: number) => async () => {
    // Of ten one pass is too short to be told.
    const passes = Math.ceil(1_000 / count);
    const before = process.threadCpuUsage();
    for (let pass = 0; pass < passes; pass++) await of.harness.reconciler.reconcile();
    const { user, system } = process.threadCpuUsage(before);
    return (user + system) / 1_000 / passes / count;
  };
  const parts = { few: each(none, few), many: each(full, many) };
  for (const warm of Object.values(parts)) await warm();
  const seen = await inRounds(5, parts);
  return rowOf("a pass of the reconciler", "each", { ...seen, ratio: medianRatio(seen.many, seen.few) });
}

interface Lives extends AsyncDisposable {
  harness: Harness<typeof systemClock>;
}

async function livesOf(count: number): Promise<Lives> {
  const resources = new AsyncDisposableStack();
  const store = resources.use(await SqliteStore.open({ path: ":memory:" }));
  const unlimited = { maxSandboxes: 0, memoryOvercommit: 0, vcpuOvercommit: 0 };
  const harness = resources.use(
    new Harness({ store, clock: systemClock, provider: new ScriptedProvider(), defaults: unlimited }),
  );
  await harness.start();
  for (let made = 0; made < count; made++) await harness.spawn();
  return { harness, [Symbol.asyncDispose]: () => resources.disposeAsync() };
}

/** Of its own thread: collectors on others come when they like. */
async function usedMs(pid: number): Promise<number> {
  const fields = (await readFile(`/proc/${pid}/task/${pid}/schedstat`, "utf8")).split(" ");
  return Number(fields[0]) / 1e6;
}

function rowOf(
  what: string,
  of: string,
  seen: { few: readonly number[]; many: readonly number[]; ratio: number },
): Row {
  const [alone, among] = [median(seen.few), median(seen.many)];
  return {
    what: `mock, ${many} at once: ${what}`,
    figure: `${micros(among)} of processor time ${of}, ${seen.ratio.toFixed(2)} ×`,
    floor: `with ${few}, in turns: ${micros(alone)}`,
    budget: `≤ ${mostTimes} ×`,
    met: seen.ratio <= mostTimes,
    data: { alone, among, ratio: seen.ratio },
  };
}

const micros = (value: number) => `${Math.round(value * 1_000)} µs`;

function turnsRow(turns: Record<string, Turn>): Row {
  const longest = Math.max(...Object.values(turns).map(({ used }) => used));
  const told = Object.entries(turns).map(([what, { used }]) => `${what} ${ms(used)}`);
  return {
    what: `mock, ${many} at once: longest turn of the event loop, processor time`,
    figure: told.join(", "),
    floor: "-",
    budget: `≤ ${longestTurn} ms`,
    met: longest <= longestTurn,
    data: Object.fromEntries(
      Object.entries(turns).flatMap(([what, { used, at }]) => [
        [what, used],
        [`${what}ByClock`, at],
      ]),
    ),
  };
}
