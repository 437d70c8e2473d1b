import { request } from "node:http";
import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { processorMs, startService } from "../service.ts";

interface Spawned {
  id: string;
}

const streams = 20;
const linesOfEach = 20_000;
/** One byte in each write, so that what costs is the piece and not its bytes. */
const command = (lines: number) => `i=0; while [ $i -lt ${lines} ]; do printf x; i=$((i+1)); done`;

/** What a line of an NDJSON stream costs the service: of one stream, and of twenty that are busy at once. */
export async function smallPieces(): Promise<Row[]> {
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  const client = new KeepAliveClient(service.url);
  const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", { vcpus: 2 });
  const path = `${service.url}/api/v1/sandboxes/${id}/exec`;
  await linesOf(path, linesOfEach);
  const one = await costs(service.pid, () => linesOf(path, linesOfEach * 4));
  const many = await costs(service.pid, async () => {
    const all = await Promise.all(Array.from({ length: streams }, () => linesOf(path, linesOfEach)));
    return {
      lines: all.reduce((sum, { lines }) => sum + lines, 0),
      chunks: all.reduce((sum, { chunks }) => sum + chunks, 0),
    };
  });
  client.close();
  return [
    {
      what: `${streams} streams of one-byte writes`,
      figure: `${many.microseconds.toFixed(1)} µs of the server a line, ${many.linesInChunk.toFixed(1)} lines a piece`,
      floor: `one stream ${one.microseconds.toFixed(1)} µs, ${one.linesInChunk.toFixed(1)} lines`,
      budget: "≤ 2 × one stream",
      met: many.microseconds <= 2 * one.microseconds,
      data: { manyUs: many.microseconds, oneUs: one.microseconds, lines: many.lines },
    },
  ];
}

interface Seen {
  lines: number;
  chunks: number;
}

async function costs(pid: number, work: () => Promise<Seen>) {
  const before = await processorMs(pid);
  const { lines, chunks } = await work();
  const spentMs = (await processorMs(pid)) - before;
  return { lines, microseconds: (spentMs * 1_000) / lines, linesInChunk: lines / chunks };
}

function linesOf(url: string, lines: number): Promise<Seen> {
  return new Promise((resolve, reject) => {
    const asked = request(url, { method: "POST", headers: { "content-type": "application/json" } });
    asked.on("error", reject);
    asked.on("response", (response) => {
      const seen = { lines: 0, chunks: 0 };
      response.on("data", (chunk: Buffer) => {
        seen.chunks += 1;
        for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, at + 1)) seen.lines += 1;
      });
      response.on("end", () => resolve(seen));
      response.on("error", reject);
    });
    asked.end(JSON.stringify({ command: command(lines), stream: true }));
  });
}
