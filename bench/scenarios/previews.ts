import { spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import http from "node:http";
import { connect } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { floorProgram } from "../floors.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { peakRss, type Service, startService } from "../service.ts";
import { megabytesPerSecond, ms, perSecond, summarize, sustain } from "../stats.ts";

const mebibyte = 1_048_576;
const clients = 16;
const sockets = 1_000;
const socketsEach = 200;

/** Where a program is asked, and under which name. */
interface Place {
  port: number;
  host: string;
}

/** A keep-alive client of one connection that asks for small answers. */
class SmallClient {
  readonly #client: KeepAliveClient;

  constructor(place: Place) {
    this.#client = new KeepAliveClient(`http://127.0.0.1:${place.port}`, place.host);
  }

  async ask(): Promise<void> {
    const { status, body } = await this.#client.send("GET / HTTP/1.1", "");
    if (status !== 200 || body !== "ok") throw new Error(`the program answered ${status} ${body}`);
  }

  close(): void {
    this.#client.close();
  }
}

async function small(place: Place, durationMs: number): Promise<{ perSecond: number; p50: number }> {
  const asking = Array.from({ length: clients }, () => new SmallClient(place));
  await sustain({ clients, durationMs: durationMs / 4 }, async (index) => asking[index]?.ask());
  const { perSecond: rate, samples } = await sustain({ clients, durationMs }, async (index) =>
    asking[index]?.ask(),
  );
  for (const client of asking) client.close();
  return { perSecond: rate, p50: summarize(samples).p50 };
}

/** @returns milliseconds for a body of so many bytes. */
function large(place: Place, bytes: number): Promise<number> {
  const started = performance.now();
  return new Promise((resolve, reject) => {
    let received = 0;
    const socket = connect({
      host: "127.0.0.1",
      port: place.port,
      onread: {
        buffer: Buffer.allocUnsafe(mebibyte),
        callback: (count) => {
          received += count;
          if (received < bytes) return true;
          socket.destroy();
          resolve(performance.now() - started);
          return false;
        },
      },
    });
    socket.once("error", reject);
    socket.once("close", () => reject(new Error(`the body was cut at ${received} bytes`)));
    socket.write(`GET /bytes/${bytes} HTTP/1.1\r\nHost: ${place.host}\r\n\r\n`);
  });
}

/** Starts the program in a sandbox. */
async function programIn(service: Service, api: KeepAliveClient, program: string): Promise<Place> {
  const { id } = await api.expect<{ id: string }>(201, "POST", "/sandboxes", { vcpus: 2 });
  const target = `${service.url}/api/v1/sandboxes/${id}/files?path=/workspace/serve&mode=755`;
  await fetch(target, { method: "PUT", body: await readFile(program) });
  await api.expect(201, "POST", `/sandboxes/${id}/execs`, { command: "/workspace/serve serve 3000" });
  const port = Number(new URL(service.url).port);
  const place = { port, host: `3000-${id}.localhost:${port}` };
  for (let tries = 0; ; tries++) {
    const client = new SmallClient(place);
    const answers = await client.ask().then(
      () => true,
      () => false,
    );
    client.close();
    if (answers) return place;
    if (tries === 100) throw new Error("the program in the sandbox does not answer");
    await delay(50);
  }
}

/** Opens upgraded connections that nothing comes on. */
async function idleSockets(place: Place, count: number): Promise<() => void> {
  const open = await Promise.all(
    Array.from(
      { length: count },
      () =>
        new Promise<http.ClientRequest>((resolve, reject) => {
          const request = http.get({
            host: "127.0.0.1",
            port: place.port,
            headers: { host: place.host, connection: "Upgrade", upgrade: "websocket" },
            agent: false,
          });
          request.once("upgrade", () => resolve(request));
          request.once("response", ({ statusCode }) =>
            reject(new Error(`a WebSocket was answered ${statusCode}`)),
          );
          request.once("error", reject);
        }),
    ),
  );
  return () => {
    for (const request of open) request.destroy();
  };
}

/** Programs in sandboxes through their preview hosts; the floor is the same program on the machine, asked directly. */
export async function previews(): Promise<Row[]> {
  const program = await floorProgram();
  const direct = { port: 17_423, host: "localhost" };
  const child = spawn(program, ["serve", String(direct.port)], { stdio: "ignore" });
  try {
    await delay(200);
    const floorSmall = await small(direct, 2_000);
    const bytes = 1_024 * mebibyte;
    await large(direct, bytes / 4);
    const floorMs = await large(direct, bytes);
    await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
    const api = new KeepAliveClient(service.url);
    const place = await programIn(service, api, program);
    const ours = await small(place, 4_000);
    await large(place, bytes / 4);
    const before = await service.rssBytes();
    let elapsed = 0;
    const peak = await peakRss(service.pid, async () => {
      elapsed = await large(place, bytes);
    });
    const others: Place[] = [];
    while (others.length * socketsEach < sockets) others.push(await programIn(service, api, program));
    const idleBefore = await service.rssBytes();
    const closers: (() => void)[] = [];
    for (const other of others) closers.push(await idleSockets(other, socketsEach));
    const grown = (await service.rssBytes()) - idleBefore;
    const underIdle = await small(place, 1_000);
    for (const close of closers) close();
    api.close();
    const growth = peak - before;
    const rate = bytes / 1_000 / elapsed;
    return [
      {
        what: `previews: small requests, ${clients} clients`,
        figure: `${perSecond(ours.perSecond)}, p50 ${ms(ours.p50)}`,
        floor: `directly ${perSecond(floorSmall.perSecond)}, p50 ${ms(floorSmall.p50)}`,
        budget: "≥ 2,000/s",
        met: ours.perSecond >= 2_000,
        data: { perSecond: ours.perSecond, p50: ours.p50, floor: floorSmall.perSecond },
      },
      {
        what: "previews: one body, 1 GiB",
        figure: `${megabytesPerSecond(bytes, elapsed)}, server RSS +${Math.round(growth / mebibyte)} MiB`,
        floor: `directly ${megabytesPerSecond(bytes, floorMs)}`,
        budget: "≥ 300 MB/s, RSS flat",
        met: rate >= 300 && growth < 64 * mebibyte,
        data: { megabytesPerSecond: rate, rssGrowth: growth, floor: bytes / 1_000 / floorMs },
      },
      {
        what: `previews: ${sockets} idle WebSockets`,
        figure: `server RSS +${Math.round(grown / mebibyte)} MiB, beside them ${perSecond(underIdle.perSecond)}`,
        floor: "-",
        budget: "≤ 64 KiB each",
        met: grown / sockets <= 65_536,
        data: { bytesEach: grown / sockets, perSecond: underIdle.perSecond },
      },
    ];
  } finally {
    child.kill();
  }
}
