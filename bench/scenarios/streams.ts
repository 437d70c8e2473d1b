import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { pipeline } from "node:stream/promises";
import { copyFile } from "../floors.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { peakRss, processorMs, startService } from "../service.ts";
import { megabytesPerSecond, summarize } from "../stats.ts";

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
  const bytes = 1_024 * mebibyte;
  const floorMs = await pipeFloor(bytes);
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  const client = new KeepAliveClient(service.url);
  const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", { vcpus: 2 });
  const producer = (size: number) =>
    JSON.stringify({
      command: `yes 0123456789012345678901234567890123456789012345678901234567890123456789 | head -c ${size}`,
      stream: true,
    });
  const stream = (size: number) =>
    countResponse(service.url, `POST /api/v1/sandboxes/${id}/exec`, producer(size));
  await stream(256 * mebibyte);
  const before = await service.rssBytes();
  const started = performance.now();
  const peak = await peakRss(service.pid, async () => void (await stream(bytes)));
  const elapsed = performance.now() - started;
  client.close();
  return [
    {
      what: "native: NDJSON stream, 1 GiB",
      figure: `${megabytesPerSecond(bytes, elapsed)}, server RSS +${megabytes(peak - before)}`,
      floor: `a pipe into node ${megabytesPerSecond(bytes, floorMs)}`,
      budget: "≥ 150 MB/s, RSS flat",
      met: bytes / 1_000 / elapsed >= 150 && peak - before < 64 * mebibyte,
      data: {
        megabytesPerSecond: bytes / 1_000 / elapsed,
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
  const floor = summarize(await copyFile(source, path.join(folder, "copy"), 3));
  await using service = await startService({
    ALCOVE_PROVIDERS_DEFAULT: "native",
    ALCOVE_DEFAULTS_MEMORY_MB: "2048",
  });
  const client = new KeepAliveClient(service.url);
  const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", { vcpus: 2 });
  // The first round fills pools and caches; growth after it would be a leak.
  await upload(service.url, `/api/v1/sandboxes/${id}/files?path=/workspace/blob`, bytes);
  await countResponse(service.url, `GET /api/v1/sandboxes/${id}/files?path=/workspace/blob`, "");
  const uploads: number[] = [];
  const downloads: number[] = [];
  let [uploadMs, downloadMs] = [0, 0];
  const before = await service.rssBytes();
  const peak = await peakRss(service.pid, async () => {
    for (let round = 0; round < 4; round++) {
      const beforeUploadMs = await processorMs(service.pid);
      const uploadStarted = performance.now();
      await upload(service.url, `/api/v1/sandboxes/${id}/files?path=/workspace/blob`, bytes);
      uploads.push(performance.now() - uploadStarted);
      const beforeDownloadMs = await processorMs(service.pid);
      uploadMs += beforeDownloadMs - beforeUploadMs;
      const downloadStarted = performance.now();
      const received = await countResponse(
        service.url,
        `GET /api/v1/sandboxes/${id}/files?path=/workspace/blob`,
        "",
      );
      downloads.push(performance.now() - downloadStarted);
      downloadMs += (await processorMs(service.pid)) - beforeDownloadMs;
      if (received < bytes) throw new Error(`the download was cut at ${received} bytes`);
    }
  });
  client.close();
  await rm(folder, { recursive: true });
  const up = summarize(uploads).p50;
  const down = summarize(downloads).p50;
  const row = (what: string, elapsed: number, spentMs: number): Row => ({
    what: `native: ${what}, 256 MiB`,
    figure: `${megabytesPerSecond(bytes, elapsed)}, ${(spentMs / 4 / 256).toFixed(2)} ms of the server a MiB, server RSS +${megabytes(peak - before)}`,
    floor: `cp ${megabytesPerSecond(bytes, floor.p50)}`,
    budget: "≥ 500 MB/s, RSS flat",
    met: bytes / 1_000 / elapsed >= 500 && peak - before < 64 * mebibyte,
    data: {
      megabytesPerSecond: bytes / 1_000 / elapsed,
      rssGrowth: peak - before,
      floor: bytes / 1_000 / floor.p50,
    },
  });
  return [row("raw upload", up, uploadMs), row("raw download", down, downloadMs)];
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
