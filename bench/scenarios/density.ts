import { readdir, readFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { processorMs, type Service, startService } from "../service.ts";
import { ms, summarize } from "../stats.ts";

interface Spawned {
  id: string;
}

const count = 1_000;
/** Of the first and of the last spawns, those that are compared. */
const edge = 50;
const idleMs = 10_000;
const mebibyte = 1_048_576;

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
    const idle = await shareOfACore(service);
    const restarted = await restart(service, spawned.ids);
    const destroyed = await destroyAll(service);
    const { p99 } = summarize(live.samples);
    const [first, last] = [spawned.taken.slice(5, edge + 5), spawned.taken.slice(-edge)].map(
      (samples) => summarize(samples).p50,
    ) as [number, number];
    return rowsOf({ each, rss, idle, first, last, ...restarted, destroyed, p99 });
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

/** Of the service with what it started, when nothing happens. */
async function shareOfACore(service: Service): Promise<number> {
  await delay(2_000);
  const before = await spentMs(service.pid);
  await delay(idleMs);
  return ((await spentMs(service.pid)) - before) / idleMs;
}

/** The launcher is its child; agents are children of launches. */
async function spentMs(pid: number): Promise<number> {
  const all = new Map<number, number>();
  for (const name of await readdir("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const stat = await readFile(`/proc/${name}/stat`, "utf8").catch(() => "");
    all.set(Number(name), Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]));
  }
  const ours = new Set([pid]);
  for (let size = 0; size !== ours.size; ) {
    size = ours.size;
    for (const [child, parent] of all) if (ours.has(parent)) ours.add(child);
  }
  const spent = await Promise.all([...ours].map((each) => processorMs(each).catch(() => 0)));
  return spent.reduce((sum, each) => sum + each, 0);
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
function watchLive(url: string): Disposable & { samples: number[] } {
  const samples: number[] = [];
  let ended = false;
  const watch = async () => {
    while (!ended) {
      const client = new KeepAliveClient(url);
      try {
        while (!ended) {
          const started = performance.now();
          await client.expect(200, "GET", "/live");
          samples.push(performance.now() - started);
          await delay(20);
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
    [Symbol.dispose]: () => {
      ended = true;
    },
  };
}

async function memoryInUse(): Promise<number> {
  const meminfo = await readFile("/proc/meminfo", "utf8");
  const kb = (name: string) => Number(new RegExp(`^${name}: +(\\d+) kB$`, "m").exec(meminfo)?.[1]);
  return (kb("MemTotal") - kb("MemAvailable")) * 1_024;
}

async function descriptorsOf(pid: number): Promise<number> {
  return (await readdir(`/proc/${pid}/fd`)).length;
}

function rowsOf(seen: {
  each: { memory: number; descriptors: number };
  rss: number;
  idle: number;
  first: number;
  last: number;
  readyMs: number;
  adoptedMs: number;
  destroyed: number;
  p99: number;
}): Row[] {
  const { each, rss, idle, first, last, readyMs, adoptedMs, destroyed, p99 } = seen;
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
      `${(each.memory / mebibyte).toFixed(2)} MiB, server RSS ${Math.round(rss / mebibyte)} MiB`,
      "≤ 1 MB each, server ≤ 200 MB",
      each.memory <= 1e6 && rss <= 200e6,
      { each: each.memory, rss },
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
