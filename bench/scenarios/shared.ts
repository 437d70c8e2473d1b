import { hash } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout } from "node:timers/promises";
import { KeyRing } from "../../packages/server/src/core/keys/key-ring.ts";
import { RateLimits } from "../../packages/server/src/core/rate-limits/rate-limits.ts";
import { silentLogger } from "../../packages/server/src/platform/logger.ts";
import { systemClock } from "../../packages/server/src/platform/system-clock.ts";
import { SqliteStore } from "../../packages/server/src/stores/sqlite/index.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { type Service, startService } from "../service.ts";
import { ms, summarize } from "../stats.ts";

const owners = 10_000;
const mock = { ALCOVE_PROVIDERS_DEFAULT: "mock", ALCOVE_PROVIDERS_MOCK_ENABLED: "true" };

/** What many owners on one service cost each other. */
export async function sharedUse(): Promise<Row[]> {
  return [await liveUnderLoad(), await spawnAmongMany(), await keysAndLimits()];
}

async function liveUnderLoad(): Promise<Row> {
  await using service = await startService(mock);
  const clients = Array.from({ length: 64 }, () => new KeepAliveClient(service.url));
  const warmUntil = performance.now() + 1_000;
  const until = warmUntil + 5_000;
  const loop = async (client: KeepAliveClient) => {
    while (performance.now() < until) {
      const { id } = await client.expect<{ id: string }>(201, "POST", "/sandboxes", {});
      await client.expect(200, "POST", `/sandboxes/${id}/exec`, { command: "echo ready" });
      await client.expect(200, "DELETE", `/sandboxes/${id}`);
    }
  };
  const probes: number[] = [];
  const probe = new KeepAliveClient(service.url);
  const probing = async () => {
    while (performance.now() < until) {
      const started = performance.now();
      await probe.expect(200, "GET", "/live");
      if (started > warmUntil) probes.push(performance.now() - started);
      await setTimeout(5);
    }
  };
  await Promise.all([...clients.map(loop), probing()]);
  for (const client of [...clients, probe]) client.close();
  const { p50, p99, max } = summarize(probes);
  return {
    what: "mock: GET /live while 64 clients spawn, exec and destroy",
    figure: `p50 ${ms(p50)}, p99 ${ms(p99)}, longest ${ms(max)}`,
    floor: "-",
    budget: "p99 < 50 ms",
    met: p99 < 50,
    data: { p50, p99, max },
  };
}

/** Blocks of spawns on an empty service and on one with many, in turns. */
async function spawnAmongMany(): Promise<Row> {
  await using empty = await startService(mock);
  await using full = await startService(mock);
  await fill(full);
  // Both as warm as a service that runs: filling the one never destroyed anything.
  for (const service of [empty, full]) await pairs(service, 5_000);
  const samples = { empty: [] as number[], full: [] as number[] };
  for (let block = 0; block < 12; block++) {
    for (const [name, service] of [
      ["empty", empty],
      ["full", full],
    ] as const) {
      const taken = await pairs(service, 60);
      if (block >= 2) samples[name].push(...taken);
    }
  }
  const [alone, among] = [summarize(samples.empty), summarize(samples.full)];
  const ratio = among.p50 / alone.p50;
  return {
    what: `mock: spawn with ${owners} sandboxes and as many owners with quotas`,
    figure: `p50 ${ms(among.p50)}, ${ratio.toFixed(2)} × an empty service`,
    floor: `empty, in turns: p50 ${ms(alone.p50)}`,
    budget: "≤ 1.2 ×",
    met: ratio <= 1.2,
    data: { p50: among.p50, empty: alone.p50, ratio },
  };
}

async function fill(service: Service): Promise<void> {
  const clients = Array.from({ length: 32 }, () => new KeepAliveClient(service.url));
  let next = 0;
  await Promise.all(
    clients.map(async (client) => {
      while (next < owners) {
        const owner = `owner-${next++}`;
        await client.expect(200, "PUT", `/quotas/${owner}`, { max_sandboxes: 5 });
        await client.expect(201, "POST", "/sandboxes", { owner_id: owner, ttl: "1h" });
      }
    }),
  );
  for (const client of clients) client.close();
}

async function pairs(service: Service, count: number): Promise<number[]> {
  const client = new KeepAliveClient(service.url);
  const taken: number[] = [];
  for (let index = 0; index < count; index++) {
    const started = performance.now();
    const { id } = await client.expect<{ id: string }>(201, "POST", "/sandboxes", { owner_id: "owner-7" });
    taken.push(performance.now() - started);
    await client.expect(200, "DELETE", `/sandboxes/${id}`);
  }
  client.close();
  return taken;
}

/** What a request pays for being known and counted, in the process itself: no connection shows it so well. */
async function keysAndLimits(): Promise<Row> {
  const folder = await mkdtemp(path.join(tmpdir(), "alcove-bench-"));
  try {
    await using store = await SqliteStore.open({ path: path.join(folder, "alcove.db") });
    const names = Array.from({ length: 1_000 }, (_, index) => `key-${index}`);
    const configured = {
      apiKey: "client",
      adminApiKey: "admin",
      adminFallbackEnabled: true,
      keys: names.map((name) => ({
        name,
        hash: hash("sha256", name, "hex"),
        ownerId: "",
        scopes: ["read" as const],
        expiresAt: null,
      })),
    };
    await using keys = await KeyRing.open({
      events: { emit: () => undefined },
      store: store.keys,
      clock: systemClock,
      logger: silentLogger,
      configured,
    });
    using limits = new RateLimits({
      clock: systemClock,
      settings: {
        enabled: true,
        requestsPerMinute: 1e9,
        burst: 1e9,
        keyBy: "owner",
        bucketTtlMs: 900_000,
        cleanupIntervalMs: 60_000,
      },
    });
    const count = 200_000;
    const costUs = (each: (index: number) => void): number => {
      for (let index = 0; index < 20_000; index++) each(index);
      const before = process.cpuUsage();
      for (let index = 0; index < count; index++) each(index);
      const { user, system } = process.cpuUsage(before);
      return (user + system) / count;
    };
    const nameOf = (index: number) => names[index % names.length] ?? "";
    const floor = costUs((index) => void hash("sha256", nameOf(index), "hex"));
    const cost = costUs((index) => {
      const key = keys.principalOf(nameOf(index))?.name;
      limits.checkKey("192.0.2.1", key);
      limits.count({ address: "192.0.2.1", owner: `owner-${index % owners}`, key });
    });
    return {
      what: `keys and rate limits, a request: ${names.length} keys, ${owners} owners`,
      figure: `${cost.toFixed(1)} µs of processor time`,
      floor: `one SHA-256 ${floor.toFixed(1)} µs`,
      budget: "< 20 µs",
      met: cost < 20,
      data: { us: cost, floor },
    };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
