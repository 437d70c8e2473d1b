import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { eventually, TestClient } from "./http.ts";

const program = fileURLToPath(new URL("./programs/model-service.ts", import.meta.url));

/** The service under test, in a process of its own. */
export class ModelService {
  readonly #env: Record<string, string>;
  #child: ChildProcess | undefined;
  client = new TestClient("http://nowhere.invalid");

  constructor(env: Record<string, string>) {
    this.#env = env;
  }

  async start(): Promise<void> {
    const child = fork(program, { env: { PATH: process.env.PATH ?? "", ...this.#env }, execArgv: [] });
    this.#child = child;
    const gone = once(child, "exit").then(() => Promise.reject(new Error("the service ended at its start")));
    gone.catch(() => undefined);
    const [{ url }] = (await Promise.race([once(child, "message"), gone])) as [{ url: string }];
    this.client = new TestClient(url);
  }

  get pid(): number {
    return this.#child?.pid ?? 0;
  }

  /** Kills it where it stands. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  async stop(): Promise<number | null> {
    return this.#end("SIGTERM");
  }

  /** The most processor time one turn of its event loop has taken. */
  async longestTurnMs(): Promise<number> {
    return (await this.#ask({}))?.longestTurnMs ?? 0;
  }

  /** The most runtimes that one owner ever had at once on mock. */
  async mostOfOwner(): Promise<number> {
    return (await this.#ask({}))?.mostOfOwner ?? 0;
  }

  /** Sets its clock, forwards or backwards. */
  async jump(jumpMs: number): Promise<void> {
    await this.#ask({ jumpMs });
  }

  async #ask(asked: { jumpMs?: number }): Promise<Told | undefined> {
    const child = this.#child;
    if (child === undefined) return undefined;
    const answer = once(child, "message") as Promise<[Told]>;
    child.send(asked);
    return (await answer)[0];
  }

  async #end(signal: NodeJS.Signals): Promise<number | null> {
    const child = this.#child;
    this.#child = undefined;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return 0;
    const exited = once(child, "exit") as Promise<[number | null]>;
    child.kill(signal);
    return (await exited)[0];
  }
}

interface Told {
  longestTurnMs: number;
  mostOfOwner: number;
}

export interface ModelOptions {
  seed: number;
  operations: number;
  /** Requests under way at once. */
  parallel: number;
  /** Sandboxes it may hold. */
  room: number;
  /** Times the service is killed, evenly spread. */
  kills: number;
  /** Of a hundred operations so many run a command. */
  execs: number;
  /** Whether sandboxes outlive the service. */
  survives: boolean;
  /** How long ends of runtimes take on mock at most; absent: they are not slow. */
  slowestEndMs?: number;
}

interface Known {
  /** It must be there as long as nobody destroys it and the service is not killed under it. */
  kept: boolean;
  destroyed: boolean;
}

export const owners = ["", "ada", "bob"];
const lasting = "10m";

/** Statuses that may come of a race; everything else is a fault. */
const allowed = {
  spawn: [201, 409, 429, 503],
  destroy: [200, 404, 503],
  prune: [200, 503],
  extend: [200, 404, 409, 503],
  exec: [200, 404, 409, 503],
  list: [200, 503],
} as const;

type Operation = keyof typeof allowed;

/** Random operations on a service that is killed now and then, and what must be true of it whatever happened. */
export class Model {
  readonly #service: ModelService;
  readonly #options: ModelOptions;
  readonly #random: () => number;
  readonly #known = new Map<string, Known>();
  readonly faults: string[] = [];
  longestTurnMs = 0;
  mostOfOwner = 0;
  done = 0;
  #lives = 0;

  constructor(service: ModelService, options: ModelOptions) {
    this.#service = service;
    this.#options = options;
    this.#random = randomFrom(options.seed);
  }

  async run(): Promise<void> {
    const { operations, kills } = this.#options;
    await this.#service.start();
    for (let life = 0; life <= kills; life++) {
      const until = Math.floor((operations * (life + 1)) / (kills + 1));
      await this.#work(until, { killAtEnd: life < kills });
      if (life === kills) break;
      await this.#service.start();
    }
  }

  /** Waits until nothing happens any more and compares what there should be with what there is. @returns what is left. */
  async settle(): Promise<string[]> {
    await this.#noteTurns();
    const { client } = this.#service;
    let disagreement = "";
    const settled = eventually(async () => {
      const sandboxes = await this.#list();
      const unsettled = sandboxes.filter(({ state, doomed }) => state !== "running" || doomed);
      const ids = new Set(sandboxes.map(({ id }) => id));
      const { json } = await client.call("GET", `/api/v1/providers/${await this.#provider()}`);
      disagreement = `${json.sandbox_count} in memory, ${ids.size} in the store, not settled: ${JSON.stringify(unsettled)}`;
      if (unsettled.length > 0 || json.sandbox_count !== ids.size) return undefined;
      for (const [id, { kept, destroyed }] of this.#known) {
        if (kept && !ids.has(id)) throw new Error(`${id} should be there and is not`);
        if (destroyed && ids.has(id)) throw new Error(`${id} was destroyed and is there`);
      }
      return [...ids];
    }, 60_000);
    return settled.catch((error: unknown) => {
      throw new Error(`${error}; ${disagreement}`, { cause: error });
    });
  }

  async destroyAll(ids: readonly string[]): Promise<void> {
    await Promise.all(ids.map((id) => this.#service.client.call("DELETE", `/api/v1/sandboxes/${id}`)));
    await eventually(async () => ((await this.#list()).length === 0 ? true : undefined), 30_000);
  }

  async #provider(): Promise<string> {
    const { json } = await this.#service.client.call("GET", "/api/v1/providers");
    return json.find((one: { default: boolean }) => one.default).name;
  }

  async #list(): Promise<{ id: string; state: string; doomed: boolean }[]> {
    const { json } = await this.#service.client.call("GET", "/api/v1/sandboxes?limit=1000");
    // Short lives end by themselves; whatever lasts was asked for with the long one.
    return json.map((one: { id: string; state: string; expires_at: string }) => ({
      id: one.id,
      state: one.state,
      doomed: Date.parse(one.expires_at) - Date.now() < 60_000,
    }));
  }

  async #work(until: number, options: { killAtEnd: boolean }): Promise<void> {
    const life = ++this.#lives;
    const worker = async () => {
      while (this.done < until) {
        this.done++;
        await this.#operate(life);
      }
    };
    const workers = Array.from({ length: this.#options.parallel }, worker);
    if (!options.killAtEnd) {
      await Promise.all(workers);
      return;
    }
    // In the middle of what the other workers do.
    await Promise.race(workers);
    await this.#noteTurns();
    this.#lives++;
    if (!this.#options.survives) for (const known of this.#known.values()) known.kept = false;
    await this.#service.kill();
    await Promise.all(workers);
  }

  async #noteTurns(): Promise<void> {
    this.longestTurnMs = Math.max(this.longestTurnMs, await this.#service.longestTurnMs());
    this.mostOfOwner = Math.max(this.mostOfOwner, await this.#service.mostOfOwner());
  }

  async #operate(life: number): Promise<void> {
    const draw = this.#random() * 100;
    const { execs, room } = this.#options;
    const id = this.#anyId();
    // Near the limit, so that some spawns wait and most find a place.
    const crowded = [...this.#known.values()].filter(({ kept }) => kept).length >= room * 0.9;
    if (draw < execs && id !== undefined) return this.#exec(life, id);
    const rest = ((draw - execs) / (100 - execs)) * 100;
    if (id === undefined || rest < (crowded ? 25 : 45)) return this.#spawn(life);
    if (rest < 75) return this.#destroy(life, id);
    if (rest < 90) return this.#extend(life, id);
    if (rest < 95) return this.#ask(life, "prune", "DELETE", "/api/v1/sandboxes").then(() => undefined);
    return this.#ask(life, "list", "GET", "/api/v1/sandboxes?limit=100").then(() => undefined);
  }

  #anyId(): string | undefined {
    const ids = [...this.#known.keys()];
    return ids[Math.floor(this.#random() * ids.length)];
  }

  async #spawn(life: number): Promise<void> {
    const short = this.#random() < 0.3;
    const ttl = short ? `${1 + Math.floor(this.#random() * 300)}ms` : lasting;
    const owner_id = owners[Math.floor(this.#random() * owners.length)];
    const leaves = this.#random() < 0.1 ? AbortSignal.timeout(Math.floor(this.#random() * 30)) : undefined;
    const { slowestEndMs } = this.#options;
    const metadata =
      slowestEndMs === undefined
        ? {}
        : { "mock.destroy_delay": `${1 + Math.floor(this.#random() * slowestEndMs)}ms` };
    const body = { ttl, owner_id, memory_mb: 64, metadata };
    const answer = await this.#ask(life, "spawn", "POST", "/api/v1/sandboxes", body, leaves);
    if (answer?.status === 201 && life === this.#lives)
      this.#known.set(answer.json.id, { kept: !short, destroyed: false });
  }

  async #destroy(life: number, id: string): Promise<void> {
    const known = this.#known.get(id);
    if (known === undefined) return;
    known.kept = false;
    const answer = await this.#ask(life, "destroy", "DELETE", `/api/v1/sandboxes/${id}`);
    if (answer?.status === 200) known.destroyed = true;
    if (known.destroyed && this.#random() < 0.8) this.#known.delete(id);
  }

  async #extend(life: number, id: string): Promise<void> {
    await this.#ask(life, "extend", "POST", `/api/v1/sandboxes/${id}/extend`, { ttl: lasting });
  }

  async #exec(life: number, id: string): Promise<void> {
    const body = { command: "echo said" };
    const answer = await this.#ask(life, "exec", "POST", `/api/v1/sandboxes/${id}/exec`, body);
    if (answer?.status === 200 && answer.json.reason === "exited" && answer.json.stdout !== "said\n")
      this.faults.push(`exec said ${JSON.stringify(answer.json)}`);
  }

  /** @returns undefined when the service was killed or the caller left. */
  async #ask(
    life: number,
    operation: Operation,
    method: string,
    path: string,
    body?: unknown,
    signal?: AbortSignal,
  ) {
    try {
      const response = await fetch(this.#service.client.url + path, {
        method,
        headers: body === undefined ? {} : { "content-type": "application/json" },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        ...(signal === undefined ? {} : { signal }),
      });
      const text = await response.text();
      const statuses: readonly number[] = allowed[operation];
      const json = JSON.parse(text);
      // A provider may fail on a machine that is busy; what follows from that must hold all the same.
      if (!statuses.includes(response.status) && json.code !== "provider_error")
        this.faults.push(`${operation} ${path} answered ${response.status}: ${text.slice(0, 300)}`);
      return { status: response.status, json };
    } catch (error) {
      if (life === this.#lives && signal?.aborted !== true) this.faults.push(`${operation} failed: ${error}`);
      return undefined;
    }
  }
}

/** The same numbers for the same seed (mulberry32). */
function randomFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}
