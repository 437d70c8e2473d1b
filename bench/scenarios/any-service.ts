import { HttpClient } from "../http-client.ts";
import type { Row } from "../row.ts";
import { megabytesPerSecond, ms, perSecond, type Summary, summarize, sustain, timeEach } from "../stats.ts";

interface Spawned {
  id: string;
}

const mebibyte = 1_048_576;
const streamed = 64 * mebibyte;

/**
 * What can be measured of any service of this interface from outside, with nothing but the interface's own paths and fields:
 * two services are compared by two runs on one machine, in turns. What it makes it destroys.
 */
export async function anyService(where: { url: string; key: string | undefined }): Promise<Row[]> {
  const client = new HttpClient(where);
  const rows = [await spawns(client)];
  const { id } = await client.json<Spawned>("POST", "/sandboxes", {});
  try {
    rows.push(await serialExec(client, id), await parallelExec(where, id));
    rows.push(await stream(client, id), ...(await files(client, id)));
  } finally {
    await client.call("DELETE", `/sandboxes/${id}`);
    client.close();
  }
  return rows;
}

async function spawns(client: HttpClient): Promise<Row> {
  const [spawned, ready, destroyed]: number[][] = [[], [], []];
  for (let index = 0; index < 23; index++) {
    const started = performance.now();
    const { id } = await client.json<Spawned>("POST", "/sandboxes", {});
    const up = performance.now();
    let answered: number;
    try {
      await client.call("POST", `/sandboxes/${id}/exec`, { command: "echo ready" });
    } finally {
      answered = performance.now();
      await client.call("DELETE", `/sandboxes/${id}`);
    }
    if (index < 3) continue;
    spawned?.push(up - started);
    ready?.push(answered - started);
    destroyed?.push(performance.now() - answered);
  }
  const [up, first, gone] = [summarize(spawned ?? []), summarize(ready ?? []), summarize(destroyed ?? [])];
  return measured(
    "spawn to first output",
    `${spread(first)} (spawn ${spread(up)}; destroy ${spread(gone)})`,
    {
      spawn: up.p50,
      p50: first.p50,
      p95: first.p95,
      destroy: gone.p50,
    },
  );
}

async function serialExec(client: HttpClient, id: string): Promise<Row> {
  const exec = () => client.call("POST", `/sandboxes/${id}/exec`, { command: "true" });
  const found = summarize(await timeEach({ count: 300, warmup: 100 }, exec));
  return measured("buffered exec of true, 1 client", spread(found), { p50: found.p50, p95: found.p95 });
}

async function parallelExec(where: { url: string; key: string | undefined }, id: string): Promise<Row> {
  const clients = Array.from({ length: 16 }, () => new HttpClient(where));
  const exec = (index: number) => clients[index]?.call("POST", `/sandboxes/${id}/exec`, { command: "true" });
  await sustain({ clients: 16, durationMs: 1_000 }, async (index) => exec(index));
  const load = await sustain({ clients: 16, durationMs: 4_000 }, async (index) => exec(index));
  for (const each of clients) each.close();
  const found = summarize(load.samples);
  return measured("buffered exec of true, 16 clients", `${perSecond(load.perSecond)}, ${spread(found)}`, {
    perSecond: load.perSecond,
    p50: found.p50,
    p95: found.p95,
  });
}

async function stream(client: HttpClient, id: string): Promise<Row> {
  const command = `yes 0123456789012345678901234567890123456789012345678901234567890123456789 | head -c ${streamed}`;
  const started = performance.now();
  const { bytes } = await client.call(
    "POST",
    `/sandboxes/${id}/exec`,
    { command, stream: true },
    { keep: false },
  );
  const elapsedMs = performance.now() - started;
  if (bytes < streamed) throw new Error(`the stream was cut at ${bytes} bytes`);
  return measured("NDJSON stream of a fast producer, 64 MiB", megabytesPerSecond(streamed, elapsedMs), {
    megabytesPerSecond: streamed / 1_000 / elapsedMs,
  });
}

/** As the interface has them: written in JSON, read raw. */
async function files(client: HttpClient, id: string): Promise<Row[]> {
  const content = "a".repeat(mebibyte);
  const path = "/tmp/bench-file";
  const write = () => client.call("POST", `/sandboxes/${id}/files`, { path, content, mode: "644" });
  const written = summarize(await timeEach({ count: 30, warmup: 5 }, write));
  const read = () => client.call("GET", `/sandboxes/${id}/files?path=${path}`, undefined, { keep: false });
  const taken = summarize(await timeEach({ count: 30, warmup: 5 }, read));
  return [
    measured("a file of 1 MiB written", spread(written), { p50: written.p50, p95: written.p95 }),
    measured("a file of 1 MiB read", spread(taken), { p50: taken.p50, p95: taken.p95 }),
  ];
}

function spread({ p50, p95 }: Summary): string {
  return `p50 ${ms(p50)}, p95 ${ms(p95)}`;
}

function measured(what: string, figure: string, data: Record<string, number>): Row {
  return { what, figure, floor: "-", budget: "-", met: undefined, data };
}
