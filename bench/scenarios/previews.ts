import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { connect, type Socket } from "node:net";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { floorProgram } from "../floors.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { freePort, peakRss, projectRoot, rssOf, type Service, startService } from "../service.ts";
import { megabytesPerSecond, ms, perSecond, summarize, sustain } from "../stats.ts";

const mebibyte = 1_048_576;
const clients = 16;
const sockets = 1_000;
const socketsEach = 200;
const bodyBytes = 2_048 * mebibyte;
const rounds = 3;
/** Nothing that goes on is silent for so long. */
const silenceMs = 60_000;

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

function askFor(place: Place, bytes: number, take: (socket: Socket, count: number) => void): Socket {
  const buffer = Buffer.allocUnsafe(mebibyte);
  const socket: Socket = connect({
    host: "127.0.0.1",
    port: place.port,
    onread: {
      buffer,
      callback: (count) => {
        take(socket, count);
        return !socket.destroyed;
      },
    },
  });
  socket.setTimeout(silenceMs, () => socket.destroy(new Error(`silent for ${silenceMs} ms`)));
  socket.write(`GET /bytes/${bytes} HTTP/1.1\r\nHost: ${place.host}\r\n\r\n`);
  return socket;
}

/** @returns milliseconds for a body of so many bytes. */
function large(place: Place, bytes: number): Promise<number> {
  const started = performance.now();
  return new Promise((resolve, reject) => {
    let received = 0;
    const socket = askFor(place, bytes, (_socket, count) => {
      received += count;
      if (received < bytes) return;
      resolve(performance.now() - started);
      socket.destroy();
    });
    socket.once("error", reject);
    socket.once("close", () => reject(new Error(`the body was cut at ${received} bytes`)));
  });
}

/** @returns milliseconds for a body of so many bytes through a tunnel, whose frames are counted with it. */
function tunnelled(place: Place & { id: string }, bytes: number): Promise<number> {
  const started = performance.now();
  const buffer = Buffer.allocUnsafe(mebibyte);
  return new Promise((resolve, reject) => {
    let received = -1;
    const socket: Socket = connect({
      host: "127.0.0.1",
      port: place.port,
      onread: {
        buffer,
        callback: (count) => {
          if (received >= 0) received += count;
          else if (buffer.toString("latin1", 0, 12) !== "HTTP/1.1 101")
            socket.destroy(new Error(`a tunnel was answered ${buffer.toString("latin1", 0, count)}`));
          else {
            received = 0;
            const ask = Buffer.from(`GET /bytes/${bytes} HTTP/1.1\r\nHost: x\r\n\r\n`);
            // One binary message, masked with zeros.
            socket.write(Buffer.concat([Buffer.from([0x82, 0x80 | ask.length, 0, 0, 0, 0]), ask]));
          }
          if (received >= bytes) {
            resolve(performance.now() - started);
            socket.destroy();
          }
          return !socket.destroyed;
        },
      },
    });
    socket.setTimeout(silenceMs, () => socket.destroy(new Error(`silent for ${silenceMs} ms`)));
    socket.once("error", reject);
    socket.once("close", () => reject(new Error(`the tunnel was cut at ${received} bytes`)));
    socket.write(
      `GET /api/v1/sandboxes/${place.id}/tunnels/3000 HTTP/1.1\r\nHost: 127.0.0.1:${place.port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${randomBytes(16).toString("base64")}\r\n\r\n`,
    );
  });
}

/** Reads 8 MiB a second of a body for so long, and leaves. */
async function slow(place: Place, durationMs: number): Promise<void> {
  let allowed = 0;
  let received = 0;
  const socket = askFor(place, bodyBytes, (from, count) => {
    received += count;
    if (received > allowed) from.pause();
  });
  const timer = setInterval(() => {
    allowed += mebibyte;
    socket.resume();
  }, 125);
  await delay(durationMs);
  clearInterval(timer);
  socket.destroy();
  if (received < mebibyte) throw new Error(`a slow reader got ${received} bytes`);
}

/** Starts the program in a sandbox. */
async function programIn(service: Service, program: string): Promise<Place & { id: string }> {
  const api = new KeepAliveClient(service.url);
  const { id } = await api.expect<{ id: string }>(201, "POST", "/sandboxes", { vcpus: 2 });
  const target = `${service.url}/api/v1/sandboxes/${id}/files?path=/workspace/serve&mode=755`;
  await fetch(target, { method: "PUT", body: await readFile(program) });
  await api.expect(201, "POST", `/sandboxes/${id}/execs`, { command: "/workspace/serve serve 3000" });
  api.close();
  const port = Number(new URL(service.url).port);
  const place = { port, host: `3000-${id}.localhost:${port}`, id };
  await answers(place);
  return place;
}

async function answers(place: Place): Promise<void> {
  for (let tries = 0; ; tries++) {
    const client = new SmallClient(place);
    const good = await client.ask().then(
      () => true,
      () => false,
    );
    client.close();
    if (good) return;
    if (tries === 200) throw new Error(`no program answers as ${place.host}`);
    await delay(50);
  }
}

/** Upgraded connections that nothing comes on for a while. */
class IdleSockets {
  readonly #open: Socket[] = [];

  async add(place: Place, count: number): Promise<void> {
    await Promise.all(Array.from({ length: count }, () => this.#add(place)));
  }

  async #add(place: Place): Promise<void> {
    const socket = connect({ host: "127.0.0.1", port: place.port });
    this.#open.push(socket);
    socket.write(
      `GET / HTTP/1.1\r\nHost: ${place.host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
    );
    const answer = await said(socket, "\r\n\r\n");
    if (!answer.startsWith("HTTP/1.1 101")) throw new Error(`a WebSocket was answered ${answer}`);
  }

  /** @returns how many say again what they are told. */
  async alive(): Promise<number> {
    const told = await Promise.allSettled(
      this.#open.map((socket) => {
        socket.write("still there\n");
        return said(socket, "still there\n");
      }),
    );
    return told.filter(({ status }) => status === "fulfilled").length;
  }

  close(): void {
    for (const socket of this.#open) socket.destroy();
  }
}

async function said(socket: Socket, end: string): Promise<string> {
  const signal = AbortSignal.timeout(silenceMs);
  let text = "";
  while (!text.endsWith(end)) text += (await once(socket, "data", { signal }))[0];
  return text;
}

/**
 * Programs in sandboxes through their preview hosts. The floors are the same program on the machine, asked directly and through a
 * plain proxy of Node's, in turns with ours.
 */
export async function previews(): Promise<Row[]> {
  const program = await floorProgram();
  const direct = { port: await freePort(), host: "localhost" };
  const plain = { port: await freePort(), host: "localhost" };
  const child = spawn(program, ["serve", String(direct.port)], { stdio: "ignore" });
  const script = path.join(projectRoot, "bench/floor/proxy.mjs");
  const proxy = spawn(process.execPath, [script, String(plain.port), String(direct.port)], {
    stdio: "ignore",
  });
  const idle = new IdleSockets();
  const plainIdle = new IdleSockets();
  try {
    await answers(plain);
    await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
    const place = await programIn(service, program);
    const [floorSmall, plainSmall, ours] = [
      await small(direct, 2_000),
      await small(plain, 4_000),
      await small(place, 4_000),
    ];
    for (const each of [direct, plain, place]) await large(each, bodyBytes / 8);
    const before = await service.rssBytes();
    await tunnelled(place, bodyBytes / 8);
    const bodies: { direct: number; plain: number; ours: number; tunnel: number }[] = [];
    let peak = 0;
    let tunnelPeak = 0;
    for (let round = 0; round < rounds; round++) {
      const floors = { direct: await large(direct, bodyBytes), plain: await large(plain, bodyBytes) };
      const body = { ...floors, ours: 0, tunnel: 0 };
      const preview = async () => {
        body.ours = await large(place, bodyBytes);
      };
      const tunnel = async () => {
        body.tunnel = await tunnelled(place, bodyBytes);
      };
      peak = Math.max(peak, await peakRss(service.pid, preview));
      tunnelPeak = Math.max(tunnelPeak, await peakRss(service.pid, tunnel));
      bodies.push(body);
    }
    const slowBefore = await service.rssBytes();
    const slowPeak = await peakRss(service.pid, () => slow(place, 5_000));

    const plainPid = proxy.pid ?? 0;
    const plainBefore = await rssOf(plainPid);
    await plainIdle.add(plain, sockets);
    const plainEach = ((await rssOf(plainPid)) - plainBefore) / sockets;
    plainIdle.close();
    const others: (Place & { id: string })[] = [];
    while (others.length * socketsEach < sockets) others.push(await programIn(service, program));
    const inside = async () => {
      const api = new KeepAliveClient(service.url);
      let bytes = 0;
      for (const { id } of others)
        bytes +=
          (await api.expect<{ memory_bytes?: number }>(200, "GET", `/sandboxes/${id}/stats`)).memory_bytes ??
          0;
      api.close();
      return bytes;
    };
    const idleBefore = { server: await service.rssBytes(), inside: await inside() };
    for (const other of others) await idle.add(other, socketsEach);
    await delay(5_000);
    const serverEach = ((await service.rssBytes()) - idleBefore.server) / sockets;
    const insideEach = ((await inside()) - idleBefore.inside) / sockets;
    const underIdle = await small(place, 1_000);
    const alive = await idle.alive();

    const middle = (of: (body: (typeof bodies)[number]) => number) => summarize(bodies.map(of)).p50;
    const rate = (elapsed: number) => bodyBytes / 1_000 / elapsed;
    const times = {
      direct: middle((b) => b.direct),
      plain: middle((b) => b.plain),
      ours: middle((b) => b.ours),
      tunnel: middle((b) => b.tunnel),
    };
    const ratio = middle((body) => body.plain / body.ours);
    const tunnelRatio = middle((body) => body.plain / body.tunnel);
    const kib = (bytes: number) => `${(bytes / 1_024).toFixed(0)} KiB`;
    const mib = (bytes: number) => `${Math.round(bytes / mebibyte)} MiB`;
    return [
      {
        what: `previews: small requests, ${clients} clients`,
        figure: `${perSecond(ours.perSecond)}, p50 ${ms(ours.p50)}`,
        floor: `plain proxy ${perSecond(plainSmall.perSecond)}, directly ${perSecond(floorSmall.perSecond)}`,
        budget: "≥ 2,000/s",
        met: ours.perSecond >= 2_000,
        data: {
          perSecond: ours.perSecond,
          p50: ours.p50,
          plain: plainSmall.perSecond,
          direct: floorSmall.perSecond,
        },
      },
      {
        what: "previews: one body, 2 GiB",
        figure: `${megabytesPerSecond(bodyBytes, times.ours)} (${ratio.toFixed(2)} × the plain proxy), server RSS +${mib(peak - before)}`,
        floor: `plain proxy ${megabytesPerSecond(bodyBytes, times.plain)}, directly ${megabytesPerSecond(bodyBytes, times.direct)}`,
        budget: "≥ 300 MB/s, RSS flat",
        met: rate(times.ours) >= 300 && peak - before < 64 * mebibyte,
        data: {
          megabytesPerSecond: rate(times.ours),
          ratio,
          rssGrowth: peak - before,
          plain: rate(times.plain),
          direct: rate(times.direct),
        },
      },
      {
        what: "tunnels: one body, 2 GiB",
        figure: `${megabytesPerSecond(bodyBytes, times.tunnel)} (${tunnelRatio.toFixed(2)} × the plain proxy), server RSS +${mib(tunnelPeak - before)}`,
        floor: `plain proxy ${megabytesPerSecond(bodyBytes, times.plain)}`,
        budget: "≥ 300 MB/s, RSS flat",
        met: rate(times.tunnel) >= 300 && tunnelPeak - before < 64 * mebibyte,
        data: {
          megabytesPerSecond: rate(times.tunnel),
          ratio: tunnelRatio,
          rssGrowth: tunnelPeak - before,
          plain: rate(times.plain),
        },
      },
      {
        what: "previews: a body read at 8 MiB a second",
        figure: `server RSS +${mib(slowPeak - slowBefore)}`,
        floor: "-",
        budget: "RSS flat",
        met: slowPeak - slowBefore < 16 * mebibyte,
        data: { rssGrowth: slowPeak - slowBefore },
      },
      {
        what: `previews: ${sockets} idle WebSockets`,
        figure: `${alive} answered after it; each ${kib(serverEach)} of the server, ${kib(insideEach)} inside; beside them ${perSecond(underIdle.perSecond)}`,
        floor: `plain proxy ${kib(plainEach)} each`,
        budget: "all answer, ≤ 64 KiB each of the server",
        met: alive === sockets && serverEach <= 65_536,
        data: { alive, serverEach, insideEach, plainEach, perSecond: underIdle.perSecond },
      },
    ];
  } finally {
    idle.close();
    plainIdle.close();
    proxy.kill();
    child.kill();
  }
}
