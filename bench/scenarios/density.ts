import { mkdir, readdir, readFile, rmdir } from "node:fs/promises";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { type Service, startService } from "../service.ts";
import { ms, summarize } from "../stats.ts";

interface Spawned {
  id: string;
}

const count = 1_000;
/** Of the first and of the last spawns, those that are compared. */
const edge = 50;
/** The reconciler looks at each sandbox once in it. */
const idleMs = 61_000;
const mebibyte = 1_048_576;
/** Memory groups that are made to see what one takes. */
const probedGroups = 64;

/** A thousand sandboxes that live at once on native: what they take, what they cost the next one, a restart with them, their end. */
export async function density(): Promise<Row[]> {
  await using service = await startService({
    ALCOVE_PROVIDERS_DEFAULT: "native",
    ALCOVE_SERVER_DESTROY_ON_EXIT: "false",
  });
  using live = watchLive(service.url);
  const before = { memory: await memoryInUse(), descriptors: await descriptorsOf(service.pid) };
  try {
    const spawned = await spawnAll(service);
    const each = {
      memory: ((await memoryInUse()) - before.memory) / count,
      descriptors: ((await descriptorsOf(service.pid)) - before.descriptors) / count,
    };
    const rss = await service.rssBytes();
    const group = await memoryOfAGroup();
    live.pause();
    const idle = await shareOfACore(service);
    live.resume();
    const restarted = await restart(service, spawned.ids);
    const destroyed = await destroyAll(service);
    const { p99 } = summarize(live.samples);
    const [first, last] = [spawned.taken.slice(5, edge + 5), spawned.taken.slice(-edge)].map(
      (samples) => summarize(samples).p50,
    ) as [number, number];
    return rowsOf({ each, group, rss, idle, first, last, ...restarted, destroyed, p99 });
  } catch (error) {
    await destroyAll(service);
    throw error;
  }
}

async function spawnAll(service: Service): Promise<{ ids: string[]; taken: number[] }> {
  const client = new KeepAliveClient(service.url);
  const ids: string[] = [];
  const taken: number[] = [];
  for (let index = 0; index < count; index++) {
    const started = performance.now();
    ids.push((await client.expect<Spawned>(201, "POST", "/sandboxes", { ttl: "1h" })).id);
    taken.push(performance.now() - started);
  }
  client.close();
  return { ids, taken };
}

/** Of the service, its launcher and the agents, when nothing happens. */
async function shareOfACore(service: Service): Promise<number> {
  // Connections of before are kept for ten seconds.
  await delay(12_000);
  const pids = [service.pid, ...(await childrenOf(service.pid)), ...(await agentsOf(service))];
  const before = await spentMs(pids);
  const began = performance.now();
  await delay(idleMs);
  return ((await spentMs(pids)) - before) / (performance.now() - began);
}

async function spentMs(pids: readonly number[]): Promise<number> {
  let sum = 0;
  for (const pid of pids) sum += await ranMs(pid).catch(() => 0);
  return sum;
}

/** Of all its threads; in ticks of 10 ms an agent takes none in a minute. */
async function ranMs(pid: number): Promise<number> {
  const threads = await readdir(`/proc/${pid}/task`);
  const ran = threads.map(async (id) =>
    Number((await readFile(`/proc/${pid}/task/${id}/schedstat`, "utf8")).split(" ")[0]),
  );
  return (await Promise.all(ran)).reduce((sum, ns) => sum + ns, 0) / 1e6;
}

async function childrenOf(pid: number): Promise<number[]> {
  const found: number[] = [];
  for (const name of await readdir("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const stat = await readFile(`/proc/${name}/stat`, "utf8").catch(() => "");
    if (Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]) === pid) found.push(Number(name));
  }
  return found;
}

async function agentsOf(service: Service): Promise<number[]> {
  const runtimes = path.join(service.dataDir, "runtimes", "native");
  const records = (await readdir(runtimes)).map((name) =>
    readFile(path.join(runtimes, name, "process.json"), "utf8").then(
      (text) => [(JSON.parse(text) as { pid: number }).pid],
      () => [],
    ),
  );
  return (await Promise.all(records)).flat();
}

/**
 * What the kernel keeps for a memory group in which nothing is, bytes: 16 for each file system that is mounted anywhere, of as many as there
 * ever were at once since the machine was started. A sandbox has two such groups. With cgroup v1 alone.
 */
async function memoryOfAGroup(): Promise<number> {
  const parent = `/sys/fs/cgroup/memory/alcove-bench-${process.pid}`;
  const made: string[] = [];
  try {
    await mkdir(parent);
    made.push(parent);
    const before = await kernelObjects();
    for (let index = 0; index < probedGroups; index++) {
      const group = path.join(parent, String(index));
      await mkdir(group);
      made.push(group);
    }
    const grown = [...(await kernelObjects())].map(([name, bytes]) => bytes - (before.get(name) ?? 0));
    // Others make something meanwhile too, and less of it.
    return Math.max(...grown) / probedGroups;
  } catch {
    return Number.NaN;
  } finally {
    for (const group of made.toReversed()) await rmdir(group);
  }
}

/** @returns until it is ready, and from then until a command runs in each of them. */
async function restart(
  service: Service,
  ids: readonly string[],
): Promise<{ readyMs: number; adoptedMs: number }> {
  const readyMs = await service.restart();
  const started = performance.now();
  const clients = Array.from({ length: 8 }, () => new KeepAliveClient(service.url));
  await Promise.all(
    clients.map(async (client, index) => {
      for (let at = index; at < ids.length; at += clients.length)
        await client.expect(200, "POST", `/sandboxes/${ids[at]}/exec`, {
          command: "/bin/true",
          mode: "argv",
        });
      client.close();
    }),
  );
  return { readyMs, adoptedMs: performance.now() - started };
}

async function destroyAll(service: Service): Promise<number> {
  const client = new KeepAliveClient(service.url);
  const started = performance.now();
  const sandboxes = await client.expect<Spawned[]>(200, "GET", `/sandboxes?limit=1000`);
  const clients = Array.from({ length: 8 }, () => new KeepAliveClient(service.url));
  await Promise.all(
    clients.map(async (each, index) => {
      for (let at = index; at < sandboxes.length; at += clients.length)
        await each.expect(200, "DELETE", `/sandboxes/${sandboxes[at]?.id}`);
      each.close();
    }),
  );
  client.close();
  return performance.now() - started;
}

/** Asks for `/live` all the time; while the service is not there, nobody answers. */
function watchLive(url: string): Disposable & { samples: number[]; pause(): void; resume(): void } {
  const samples: number[] = [];
  let ended = false;
  let paused = Promise.withResolvers<void>();
  paused.resolve();
  const watch = async () => {
    while (!ended) {
      const client = new KeepAliveClient(url);
      try {
        while (!ended) {
          const started = performance.now();
          await client.expect(200, "GET", "/live");
          samples.push(performance.now() - started);
          await delay(20);
          await paused.promise;
        }
      } catch {
        await delay(100);
      } finally {
        client.close();
      }
    }
  };
  void watch();
  return {
    samples,
    pause: () => {
      paused = Promise.withResolvers();
    },
    resume: () => paused.resolve(),
    [Symbol.dispose]: () => {
      ended = true;
      paused.resolve();
    },
  };
}

async function memoryInUse(): Promise<number> {
  const meminfo = await readFile("/proc/meminfo", "utf8");
  return bytesOf(meminfo, "MemTotal") - bytesOf(meminfo, "MemAvailable");
}

/** Bytes of the objects that are in use, by their kind; what the kernel holds for them also has those that are free. */
async function kernelObjects(): Promise<Map<string, number>> {
  const lines = (await readFile("/proc/slabinfo", "utf8")).trimEnd().split("\n").slice(2);
  return new Map(
    lines.map((line) => {
      const [name = "", active, , size] = line.trim().split(/ +/);
      return [name, Number(active) * Number(size)];
    }),
  );
}

function bytesOf(meminfo: string, name: string): number {
  return Number(new RegExp(`^${name}: +(\\d+) kB$`, "m").exec(meminfo)?.[1]) * 1_024;
}

async function descriptorsOf(pid: number): Promise<number> {
  return (await readdir(`/proc/${pid}/fd`)).length;
}

function rowsOf(seen: {
  each: { memory: number; descriptors: number };
  group: number;
  rss: number;
  idle: number;
  first: number;
  last: number;
  readyMs: number;
  adoptedMs: number;
  destroyed: number;
  p99: number;
}): Row[] {
  const { each, group, rss, idle, first, last, readyMs, adoptedMs, destroyed, p99 } = seen;
  const row = (what: string, figure: string, budget: string, met: boolean, data: Row["data"]): Row => ({
    what: `native, ${count} at once: ${what}`,
    figure,
    floor: "-",
    budget,
    met,
    data,
  });
  return [
    row(
      "memory of the machine, each",
      `${(each.memory / mebibyte).toFixed(2)} MiB, server RSS ${Math.round(rss / mebibyte)} MiB; an empty memory group takes ${Math.round(group / 1_024)} KiB`,
      "≤ 1 MB each, server ≤ 200 MB",
      each.memory <= 1e6 && rss <= 200e6,
      { each: each.memory, group, rss },
    ),
    row("when nothing happens", `${(idle * 100).toFixed(1)} % of a core`, "≤ 2 %", idle <= 0.02, { idle }),
    row(
      "the last spawns against the first",
      `p50 ${ms(last)}, ${(last / first).toFixed(2)} × the first ${ms(first)}`,
      "≤ 1.3 ×",
      last <= 1.3 * first,
      { first, last },
    ),
    row("descriptors of the service, each", each.descriptors.toFixed(2), "≤ 2", each.descriptors <= 2, {
      descriptors: each.descriptors,
    }),
    row(
      "restart",
      `ready after ${ms(readyMs)}, a command in each ${ms(adoptedMs)} later`,
      "ready ≤ 2 s, all ≤ 15 s",
      readyMs <= 2_000 && readyMs + adoptedMs <= 15_000,
      { readyMs, adoptedMs },
    ),
    row("GET /live throughout", `p99 ${ms(p99)}`, "p99 ≤ 20 ms", p99 <= 20, { p99 }),
    row("all destroyed", ms(destroyed), "≤ 30 s", destroyed <= 30_000, { destroyed }),
  ];
}
