import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { pipeline } from "node:stream/promises";
import { copyFile } from "../floors.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import { inRounds, median, medianRatio } from "../rounds.ts";
import type { Row } from "../row.ts";
import { peakRss, processorMs, startService } from "../service.ts";
import { megabytesPerSecond } from "../stats.ts";

const rounds = 5;

interface Spawned {
  id: string;
}

const mebibyte = 1_048_576;
const megabytes = (bytes: number) => `${Math.round(bytes / mebibyte)} MiB`;

/** Sends one request on a connection of its own and counts what comes back. @returns bytes received. */
function countResponse(url: string, head: string, body: string): Promise<number> {
  const { hostname, port, host } = new URL(url);
  return new Promise((resolve, reject) => {
    let received = 0;
    const buffer = Buffer.allocUnsafe(mebibyte);
    const socket = connect({
      host: hostname,
      port: Number(port),
      onread: {
        buffer,
        callback: (count) => {
          received += count;
          return true;
        },
      },
    });
    socket.on("error", reject);
    socket.on("close", () => resolve(received));
    socket.write(
      `${head} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    );
  });
}

async function pipeFloor(bytes: number): Promise<number> {
  const child = spawn(
    "sh",
    ["-c", `yes 0123456789012345678901234567890123456789012345678901234567890123456789 | head -c ${bytes}`],
    {
      stdio: ["ignore", "pipe", "ignore"],
    },
  );
  const started = performance.now();
  for await (const _ of child.stdout) {
    // Reading is the point.
  }
  return performance.now() - started;
}

/** An NDJSON stream of a fast producer, and the memory it costs the server. */
export async function ndjsonStream(): Promise<Row[]> {
  const bytes = 256 * mebibyte;
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  const client = new KeepAliveClient(service.url);
  const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", { vcpus: 2 });
  const producer = JSON.stringify({
    command: `yes 0123456789012345678901234567890123456789012345678901234567890123456789 | head -c ${bytes}`,
    stream: true,
  });
  const streamMs = async () => {
    const started = performance.now();
    await countResponse(service.url, `POST /api/v1/sandboxes/${id}/exec`, producer);
    return performance.now() - started;
  };
  await streamMs();
  const before = await service.rssBytes();
  const spent = new Spent(service.pid);
  let figures = { times: [] as number[], floors: [] as number[] };
  const peak = await peakRss(service.pid, async () => {
    figures = await inRounds(rounds, {
      times: () => spent.during(streamMs),
      floors: () => pipeFloor(bytes),
    });
  });
  client.close();
  const { times, floors } = figures;
  const ratio = medianRatio(floors, times);
  const [elapsed, floorMs] = [median(times), median(floors)];
  return [
    {
      what: "native: NDJSON stream, 256 MiB",
      figure: `${megabytesPerSecond(bytes, elapsed)}, ${ratio.toFixed(2)} × the pipe, ${(spent.ms / rounds / 256).toFixed(2)} ms of the server a MiB, server RSS +${megabytes(peak - before)}`,
      floor: `a pipe into node ${megabytesPerSecond(bytes, floorMs)}`,
      budget: "≥ 0.8 × the pipe, RSS flat",
      met: ratio >= 0.8 && peak - before < 64 * mebibyte,
      data: {
        megabytesPerSecond: bytes / 1_000 / elapsed,
        ratio,
        rssGrowth: peak - before,
        floor: bytes / 1_000 / floorMs,
      },
    },
  ];
}

/** Raw upload and download of 256 MiB. */
export async function rawFiles(): Promise<Row[]> {
  const bytes = 256 * mebibyte;
  const folder = await mkdtemp(path.join(tmpdir(), "alcove-bench-files-"));
  const source = path.join(folder, "source");
  const fill = spawn("dd", ["if=/dev/urandom", `of=${source}`, "bs=1M", "count=256", "status=none"]);
  await new Promise((resolve) => fill.once("exit", resolve));
  await using service = await startService({
    ALCOVE_PROVIDERS_DEFAULT: "native",
    ALCOVE_DEFAULTS_MEMORY_MB: "2048",
  });
  const client = new KeepAliveClient(service.url);
  const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", { vcpus: 2 });
  const target = `/api/v1/sandboxes/${id}/files?path=/workspace/blob`;
  const uploadMs = async () => {
    const started = performance.now();
    await upload(service.url, target, bytes);
    return performance.now() - started;
  };
  const downloadMs = async () => {
    const started = performance.now();
    const received = await countResponse(service.url, `GET ${target}`, "");
    if (received < bytes) throw new Error(`the download was cut at ${received} bytes`);
    return performance.now() - started;
  };
  // The first round fills pools and caches; growth after it would be a leak.
  await uploadMs();
  await downloadMs();
  const [uploads, downloads] = [new Spent(service.pid), new Spent(service.pid)];
  let figures = { copy: [] as number[], up: [] as number[], down: [] as number[] };
  const before = await service.rssBytes();
  const peak = await peakRss(service.pid, async () => {
    figures = await inRounds(rounds, {
      copy: async () => median(await copyFile(source, path.join(folder, "copy"), 1)),
      up: () => uploads.during(uploadMs),
      down: () => downloads.during(downloadMs),
    });
  });
  client.close();
  await rm(folder, { recursive: true });
  const { copy, up, down } = figures;
  const row = (what: string, times: number[], spent: Spent, least: number): Row => {
    const ratio = medianRatio(copy, times);
    const rate = bytes / 1_000 / median(times);
    return {
      what: `native: ${what}, 256 MiB`,
      figure: `${megabytesPerSecond(bytes, median(times))}, ${ratio.toFixed(2)} × cp, ${(spent.ms / rounds / 256).toFixed(2)} ms of the server a MiB, server RSS +${megabytes(peak - before)}`,
      floor: `cp ${megabytesPerSecond(bytes, median(copy))}`,
      budget: `≥ ${least} × cp, RSS flat`,
      met: ratio >= least && peak - before < 64 * mebibyte,
      data: {
        megabytesPerSecond: rate,
        ratio,
        rssGrowth: peak - before,
        floor: bytes / 1_000 / median(copy),
      },
    };
  };
  return [row("raw upload", up, uploads, 0.5), row("raw download", down, downloads, 0.7)];
}

/** Processor time that a process took while something was done. */
class Spent {
  ms = 0;
  readonly #pid: number;

  constructor(pid: number) {
    this.#pid = pid;
  }

  async during<T>(work: () => Promise<T>): Promise<T> {
    const before = await processorMs(this.#pid);
    const done = await work();
    this.ms += (await processorMs(this.#pid)) - before;
    return done;
  }
}

async function upload(url: string, target: string, bytes: number): Promise<void> {
  const { hostname, port, host } = new URL(url);
  const socket = connect({ host: hostname, port: Number(port) });
  const chunk = Buffer.alloc(mebibyte, 0x61);
  const answered = new Promise<string>((resolve, reject) => {
    socket.once("data", (data) => resolve(data.toString("latin1")));
    socket.once("error", reject);
    socket.once("close", () => reject(new Error("the upload was cut")));
  });
  async function* body() {
    yield Buffer.from(
      `PUT ${target} HTTP/1.1\r\nHost: ${host}\r\nContent-Type: application/octet-stream\r\nContent-Length: ${bytes}\r\n\r\n`,
    );
    for (let sent = 0; sent < bytes; sent += chunk.length) yield chunk;
  }
  await pipeline(body, socket, { end: false });
  const head = await answered;
  socket.destroy();
  if (!/^HTTP\/1.1 20/.test(head)) throw new Error(`upload: ${head}`);
}
