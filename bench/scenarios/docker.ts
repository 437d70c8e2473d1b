import { existsSync } from "node:fs";
import { readdir } from "node:fs/promises";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Agent, request } from "undici";
import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { type Service, startService } from "../service.ts";
import { ms, summarize, timeEach } from "../stats.ts";

interface Spawned {
  id: string;
}

/** The few calls of the Engine API the floors need. */
class Engine {
  readonly #agent: Agent;

  constructor(socket: string) {
    this.#agent = new Agent({ connect: { socketPath: socket.replace(/^unix:\/\//, "") } });
  }

  async call<T>(method: "GET" | "POST" | "DELETE", path: string, body?: unknown): Promise<T | undefined> {
    const response = await request(`http://engine${path}`, {
      dispatcher: this.#agent,
      method,
      ...(body === undefined
        ? {}
        : { body: JSON.stringify(body), headers: { "content-type": "application/json" } }),
    });
    const text = await response.body.text();
    if (response.statusCode >= 300) throw new Error(`${method} ${path}: ${response.statusCode} ${text}`);
    return text.startsWith("{") || text.startsWith("[") ? (JSON.parse(text) as T) : undefined;
  }

  async createAndStart(image: string): Promise<string> {
    const created = await this.call<{ Id: string }>("POST", "/containers/create", {
      Image: image,
      Entrypoint: ["sleep"],
      Cmd: ["1000000"],
      HostConfig: {
        NetworkMode: "none",
        CapDrop: ["ALL"],
        Memory: 536_870_912,
        MemorySwap: 536_870_912,
        PidsLimit: 512,
      },
    });
    const id = created?.Id ?? "";
    await this.call("POST", `/containers/${id}/start`);
    return id;
  }

  async exec(container: string): Promise<void> {
    const exec = await this.call<{ Id: string }>("POST", `/containers/${container}/exec`, {
      Cmd: ["true"],
      AttachStdout: true,
    });
    await this.call("POST", `/exec/${exec?.Id}/start`, { Detach: false, Tty: false });
    await this.call("GET", `/exec/${exec?.Id}/json`);
  }

  close(): Promise<void> {
    return this.#agent.close();
  }
}

/** Exec, spawn and destroy on docker against the same acts through the Engine API. */
export async function dockerRows(): Promise<Row[]> {
  const socket = process.env.BENCH_DOCKER ?? "unix:///var/run/docker.sock";
  const image = process.env.BENCH_IMAGE ?? "busybox:latest";
  const engine = new Engine(socket);
  const present = await engine.call("GET", `/images/${image}/json`).then(
    () => true,
    () => false,
  );
  if (!present) {
    await engine.close();
    console.error(`bench: no image ${image} at ${socket}; name them in BENCH_DOCKER and BENCH_IMAGE`);
    return [];
  }
  const settings = {
    ALCOVE_PROVIDERS_DEFAULT: "docker",
    ALCOVE_PROVIDERS_DOCKER_SOCKET: socket,
    ALCOVE_PROVIDERS_DOCKER_DEFAULT_IMAGE: image,
  };
  await using service = await startService(settings);
  const client = new KeepAliveClient(service.url);
  await using preparing = await startService({ ...settings, ALCOVE_PROVIDERS_DOCKER_PREPARED: "1" });
  const claiming = new KeepAliveClient(preparing.url);

  const floor = { spawn: [] as number[], remove: [] as number[] };
  const ours = { spawn: [] as number[], destroy: [] as number[], prepared: [] as number[] };
  for (let round = 0; round < 15; round++) {
    const { id: claimed } = await timed(ours.prepared, () =>
      claiming.expect<Spawned>(201, "POST", "/sandboxes", {}),
    );
    await claiming.expect(200, "DELETE", `/sandboxes/${claimed}`);
    const container = await timed(floor.spawn, () => engine.createAndStart(image));
    await timed(floor.remove, () => engine.call("DELETE", `/containers/${container}?force=true&v=true`));
    const { id } = await timed(ours.spawn, () => client.expect<Spawned>(201, "POST", "/sandboxes", {}));
    await timed(ours.destroy, () => client.expect(200, "DELETE", `/sandboxes/${id}`));
    await stocked(preparing);
  }

  const container = await engine.createAndStart(image);
  const engineExec = summarize(await timeEach({ count: 30, warmup: 3 }, () => engine.exec(container)));
  await engine.call("DELETE", `/containers/${container}?force=true`);
  const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", {});
  const exec = summarize(
    await timeEach({ count: 300, warmup: 50 }, () =>
      client.expect(200, "POST", `/sandboxes/${id}/exec`, { command: "true", mode: "argv" }),
    ),
  );
  await client.expect(200, "DELETE", `/sandboxes/${id}`);
  client.close();
  claiming.close();
  await engine.close();

  const spawn = summarize(ours.spawn.slice(2)).p50;
  const spawnFloor = summarize(floor.spawn.slice(2)).p50;
  const prepared = summarize(ours.prepared.slice(2));
  const destroy = summarize(ours.destroy.slice(2)).p50;
  const destroyFloor = summarize(floor.remove.slice(2)).p50;
  return [
    {
      what: "docker: buffered exec of true",
      figure: `p50 ${ms(exec.p50)}, p95 ${ms(exec.p95)} (${(engineExec.p50 / exec.p50).toFixed(0)} × faster)`,
      floor: `Engine API exec p50 ${ms(engineExec.p50)}`,
      budget: "≥ 30 × faster",
      met: engineExec.p50 / exec.p50 >= 30,
      data: { p50: exec.p50, p95: exec.p95, floor: engineExec.p50 },
    },
    {
      what: "docker: spawn, cold",
      figure: `p50 ${ms(spawn)} (${(spawn / spawnFloor).toFixed(2)} ×)`,
      floor: `Engine API create + start p50 ${ms(spawnFloor)}`,
      budget: "≤ 1.15 ×",
      met: spawn <= 1.15 * spawnFloor,
      data: { p50: spawn, floor: spawnFloor },
    },
    {
      what: "docker: spawn, prepared",
      figure: `p50 ${ms(prepared.p50)}, p95 ${ms(prepared.p95)} (${(prepared.p50 / spawnFloor).toFixed(3)} ×)`,
      floor: `Engine API create + start p50 ${ms(spawnFloor)}`,
      budget: "p50 ≤ 15 ms",
      met: prepared.p50 <= 15,
      data: { p50: prepared.p50, p95: prepared.p95, floor: spawnFloor },
    },
    {
      what: "docker: destroy",
      figure: `p50 ${ms(destroy)} (${(destroy / destroyFloor).toFixed(2)} ×)`,
      floor: `Engine API forced remove p50 ${ms(destroyFloor)}`,
      budget: "≤ 1.2 ×",
      met: destroy <= 1.2 * destroyFloor,
      data: { p50: destroy, floor: destroyFloor },
    },
  ];
}

/** Waits until the service has made ahead what it keeps, and is quiet. */
async function stocked({ dataDir }: Service): Promise<void> {
  const runtimes = path.join(dataDir, "runtimes", "docker");
  const until = performance.now() + 20_000;
  while (performance.now() < until) {
    await delay(50);
    const names = await readdir(runtimes);
    const [ahead] = names.filter((name) => name.startsWith("prepared-"));
    const socket = ahead && path.join(runtimes, ahead, "sock", "agent.sock");
    if (socket && existsSync(socket)) break;
  }
  // Its agent has answered by then.
  await delay(200);
}

async function timed<T>(samples: number[], operation: () => Promise<T>): Promise<T> {
  const started = performance.now();
  const result = await operation();
  samples.push(performance.now() - started);
  return result;
}
