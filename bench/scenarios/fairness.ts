import { spawn } from "node:child_process";
import { once } from "node:events";
import { Agent, type IncomingMessage, request } from "node:http";
import { setTimeout as delay } from "node:timers/promises";
import { type FairnessFloor, fairnessFloor } from "../fairness-floors.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import { type Call, timeCalls } from "../light-client.ts";
import type { Row } from "../row.ts";
import { startService } from "../service.ts";
import { ms, type Summary, summarize } from "../stats.ts";

interface Spawned {
  id: string;
}

const rounds = 5;
const execsInRound = 150;
const warmup = 300;
/** Until what was begun is under way, and until what was ended has given back. */
const settleMs = 500;

/** A sandbox that takes what it can. `begin` gives what ends it. */
interface Hog {
  what: string;
  begin: (service: {
    url: string;
    client: KeepAliveClient;
    ids: readonly string[];
  }) => Promise<() => Promise<void>>;
  /** The same without any of our processes; undefined where that would be none. */
  floor?: (floor: FairnessFloor) => Promise<() => Promise<void>>;
}

const hogs: readonly Hog[] = [
  {
    what: "uses all its processor",
    begin: ({ client, ids: [id = ""] }) => runs(client, id, "while :; do :; done & while :; do :; done"),
    floor: (floor) => floor.usesProcessor(),
  },
  {
    what: "writes its disk at full speed",
    begin: ({ client, ids: [id = ""] }) =>
      runs(client, id, "while :; do head -c 200000000 /dev/zero > /workspace/hog; done"),
  },
  {
    what: "floods a reader with output",
    begin: ({ url, ids: [id = ""] }) => floods(url, id),
    floor: (floor) => floor.floods(),
  },
  { what: "holds 1,000 idle streams", begin: holdsStreams },
];

/** What one sandbox's load costs a command in another, in turns with none, and a bare fork+exec beside the same load. */
export async function fairness(): Promise<Row[]> {
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  await using floor = await fairnessFloor();
  const client = new KeepAliveClient(service.url);
  const spawn = async () => (await client.expect<Spawned>(201, "POST", "/sandboxes", {})).id;
  const neighbour = await spawn();
  const ids = [await spawn(), await spawn()];
  const exec: Call = {
    method: "POST",
    path: `/sandboxes/${neighbour}/exec`,
    body: { command: "/bin/true", mode: "argv" },
  };
  const block = async (count: number) =>
    summarize((await timeCalls([exec], { url: service.url, count })).flat());
  await block(warmup);
  const rows: Row[] = [];
  for (const { what, begin, floor: beginFloor } of hogs) {
    const [alone, beside]: [Summary[], Summary[]] = [[], []];
    const [bareAlone, bareBeside]: [Summary[], Summary[]] = [[], []];
    for (let round = 0; round < rounds; round++) {
      alone.push(await block(execsInRound));
      const end = await begin({ url: service.url, client, ids });
      await delay(settleMs);
      beside.push(await block(execsInRound));
      await end();
      await delay(settleMs);
      if (floor === undefined || beginFloor === undefined) continue;
      bareAlone.push(summarize(await floor.block(execsInRound)));
      const endFloor = await beginFloor(floor);
      await delay(settleMs);
      bareBeside.push(summarize(await floor.block(execsInRound)));
      await endFloor();
    }
    const bare = bareAlone.length > 0 ? costOf(median(bareAlone), median(bareBeside)) : undefined;
    rows.push(rowOf(what, costOf(median(alone), median(beside)), bare));
  }
  client.close();
  return rows;
}

function median(blocks: readonly Summary[]): { p50: number; p95: number } {
  const of = (at: "p50" | "p95") => summarize(blocks.map((each) => each[at])).p50;
  return { p50: of("p50"), p95: of("p95") };
}

interface Cost {
  alone: { p50: number; p95: number };
  beside: { p50: number; p95: number };
  /** Beside it as a multiple of alone. */
  p50: number;
  p95: number;
}

function costOf(alone: Cost["alone"], beside: Cost["beside"]): Cost {
  return { alone, beside, p50: beside.p50 / alone.p50, p95: beside.p95 / alone.p95 };
}

function rowOf(what: string, cost: Cost, bare: Cost | undefined): Row {
  const { alone, beside, p50, p95 } = cost;
  const told = (of: Cost) =>
    `p50 ${ms(of.beside.p50)} (${of.p50.toFixed(2)} ×), p95 ${ms(of.beside.p95)} (${of.p95.toFixed(2)} ×)`;
  const bareText = bare === undefined ? "" : `; bare fork+exec beside the same: ${told(bare)}`;
  return {
    what: `native: exec of true beside one sandbox that ${what}`,
    figure: told(cost),
    floor: `alone, in turns: p50 ${ms(alone.p50)}, p95 ${ms(alone.p95)}${bareText}`,
    budget: "p50 ≤ 1.5 ×, p95 ≤ 2 ×",
    met: p50 <= 1.5 && p95 <= 2,
    data: {
      p50: beside.p50,
      p95: beside.p95,
      aloneP50: alone.p50,
      aloneP95: alone.p95,
      ...(bare && { bareTimesP50: bare.p50, bareTimesP95: bare.p95 }),
    },
  };
}

async function runs(client: KeepAliveClient, id: string, command: string): Promise<() => Promise<void>> {
  const { exec_id } = await client.expect<{ exec_id: string }>(201, "POST", `/sandboxes/${id}/execs`, {
    command,
    timeout: "10m",
  });
  return async () => {
    await client.expect(200, "DELETE", `/sandboxes/${id}/execs/${exec_id}`);
  };
}

/** By a process of its own: this one would measure what it takes itself to read. */
async function floods(url: string, id: string): Promise<() => Promise<void>> {
  const program = `
    const body = JSON.stringify({ command: "yes", stream: true });
    const headers = { "content-type": "application/json" };
    const asked = require("node:http").request(process.argv[1], { method: "POST", headers }, (answer) => answer.resume());
    asked.end(body);`;
  const reader = spawn(process.execPath, ["-e", program, `${url}/api/v1/sandboxes/${id}/exec`], {
    stdio: "ignore",
  });
  const ended = once(reader, "exit");
  return async () => {
    reader.kill();
    await ended;
  };
}

/** A sandbox has 768 places for them, so that two have them. */
async function holdsStreams({
  url,
  client,
  ids,
}: {
  url: string;
  client: KeepAliveClient;
  ids: readonly string[];
}): Promise<() => Promise<void>> {
  const streams: IncomingMessage[] = [];
  const ends: (() => Promise<void>)[] = [];
  for (const id of ids) {
    const { exec_id } = await client.expect<{ exec_id: string }>(201, "POST", `/sandboxes/${id}/execs`, {
      command: "echo; sleep 600",
    });
    ends.push(async () => {
      await client.expect(200, "DELETE", `/sandboxes/${id}/execs/${exec_id}`);
    });
    for (let index = 0; index < 500; index++)
      streams.push(await opened(url, "GET", `/sandboxes/${id}/execs/${exec_id}/output?follow=true`));
  }
  for (const stream of streams) stream.resume();
  return async () => {
    for (const stream of streams) stream.destroy();
    for (const end of ends) await end();
  };
}

function opened(url: string, method: string, path: string, body?: unknown): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const asked = request(`${url}/api/v1${path}`, {
      method,
      agent: new Agent(),
      headers: { "content-type": "application/json" },
    });
    asked.on("error", reject);
    asked.on("response", (answer) => {
      answer.on("error", () => undefined);
      if (answer.statusCode === 200) resolve(answer);
      else reject(new Error(`${method} ${path}: ${answer.statusCode}`));
    });
    asked.end(body === undefined ? undefined : JSON.stringify(body));
  });
}
