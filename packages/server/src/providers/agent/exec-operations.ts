import {
  BadRequest,
  type CallOptions,
  Conflict,
  type ExecExit,
  type ExecId,
  type ExecInfo,
  type ExecOperations,
  type ExecSpec,
  type ExecView,
  type WindowSize,
} from "../../ports/index.ts";
import type { AgentAsk, AgentChannel, AgentRequest } from "./channel.ts";
import type { EventsFeed } from "./events-feed.ts";
import { listExecs } from "./exec-list.ts";
import { ExecFollow } from "./exec-view.ts";
import { Call, Operation } from "./operation.ts";
import { execInfoOf, numberOf } from "./reading.ts";

/** Commands of one sandbox, through its agent. docs/agent-protocol.md, Exec operations. */
export class AgentExecs implements ExecOperations {
  readonly #channel: AgentChannel;
  readonly #feed: EventsFeed;
  readonly #name: string;

  constructor(options: { channel: AgentChannel; feed: EventsFeed; name: string }) {
    this.#channel = options.channel;
    this.#feed = options.feed;
    this.#name = options.name;
  }

  async start(spec: ExecSpec, options: CallOptions): Promise<ExecView> {
    const follow = new ExecFollow({ name: this.#name });
    this.#channel.begin(startAsk(spec, { follow: true }), follow, options.signal);
    try {
      return follow.view(spec.execId, numberOf(await follow.reply, "pid"));
    } catch (error) {
      if (!(follow.sentAgain && error instanceof Conflict)) throw error;
      const view = await this.attach(spec.execId, { ...options, from: 0, follow: true, lossless: true });
      if (isStartOf(spec, view.info)) return view;
      await view[Symbol.asyncDispose]();
      throw error;
    }
  }

  async startDetached(spec: ExecSpec, options: CallOptions): Promise<{ pid: number }> {
    const call = new Call({ fresh: false });
    this.#channel.begin(startAsk(spec, { follow: false }), call, options.signal);
    try {
      return { pid: numberOf(await call.reply, "pid") };
    } catch (error) {
      if (!(call.sentAgain && error instanceof Conflict)) throw error;
      const info = await this.get(spec.execId, options);
      if (isStartOf(spec, info)) return { pid: info.pid };
      throw error;
    }
  }

  async attach(
    execId: ExecId,
    options: CallOptions & { from: number; follow: boolean; lossless: boolean },
  ): Promise<ExecView & { info: ExecInfo }> {
    const follow = new ExecFollow({ name: this.#name });
    const request = {
      op: "exec.attach",
      exec_id: execId,
      from: options.from,
      follow: options.follow,
      lossless: options.lossless,
    };
    this.#channel.begin(request, follow, options.signal);
    const info = execInfoOf(await follow.reply);
    return { ...follow.view(execId, info.pid), info };
  }

  async get(execId: ExecId, options: CallOptions): Promise<ExecInfo> {
    return execInfoOf(await this.#channel.call({ op: "exec.get", exec_id: execId }, options));
  }

  list(options: CallOptions): Promise<ExecInfo[]> {
    return listExecs(this.#channel, options);
  }

  async writeStdin(
    execId: ExecId,
    data: Uint8Array,
    options: CallOptions & { close: boolean },
  ): Promise<void> {
    if (data.length > 0) {
      const write = new StdinWrite(data);
      this.#channel.begin({ op: "exec.stdin", exec_id: execId }, write, options.signal);
      await write.done;
    }
    if (!options.close) return;
    try {
      await this.#channel.call({ op: "exec.stdin_close", exec_id: execId }, options);
    } catch (error) {
      // A command that has read what it wanted may end before its input is closed: all was taken, nothing is left to do.
      if (data.length === 0 || !(error instanceof Conflict)) throw error;
    }
  }

  async resize(execId: ExecId, size: WindowSize, options: CallOptions): Promise<void> {
    await this.#channel.call(
      { op: "exec.resize", exec_id: execId, cols: size.cols, rows: size.rows },
      options,
    );
  }

  async signal(execId: ExecId, signal: number, options: CallOptions): Promise<void> {
    await this.#channel.call({ op: "exec.signal", exec_id: execId, signal }, options);
  }

  async kill(execId: ExecId, options: CallOptions & { reason: "cancelled" | "timeout" }): Promise<ExecInfo> {
    const request = { op: "exec.kill", exec_id: execId, reason: options.reason };
    return execInfoOf(await this.#channel.call(request, options));
  }

  exits(
    options: CallOptions & { onListening?: () => void },
  ): AsyncIterable<{ execId: ExecId; exit: ExecExit }> {
    return this.#feed.exits(options);
  }

  async setGrace(execId: ExecId, graceMs: number | null, options: CallOptions): Promise<void> {
    await this.#channel.call({ op: "exec.grace", exec_id: execId, grace_ms: graceMs }, options);
  }
}

/** Whether the command that has the id is the one asked for; a record holds the beginning of a long command. */
function isStartOf(spec: ExecSpec, info: ExecInfo): boolean {
  return spec.command.startsWith(info.command.replace(/…$/, "")) && spec.detached === info.detached;
}

/** Limits are only asked of agents that know them. */
function startAsk(spec: ExecSpec, options: { follow: boolean }): AgentAsk {
  const { limits } = spec;
  if (limits === undefined) return startRequest(spec, options);
  return (features) => {
    if (!features.has("limits"))
      throw new BadRequest(
        "limits are unknown to the agent of this sandbox, which is older than the service",
      );
    const { cpuTimeMs, outputBytes } = limits;
    return { ...startRequest(spec, options), limits: { cpu_ms: cpuTimeMs, output_bytes: outputBytes } };
  };
}

function startRequest(spec: ExecSpec, options: { follow: boolean }): AgentRequest {
  return {
    op: "exec.start",
    exec_id: spec.execId,
    command: spec.command,
    args: spec.args,
    argv: spec.argv,
    env: spec.env,
    cwd: spec.workdir,
    user: spec.user,
    tty: spec.tty,
    stdin: spec.stdin,
    timeout_ms: spec.timeoutMs,
    detached: spec.detached,
    tag: spec.tag,
    follow: options.follow,
    lossless: options.follow,
  };
}

/** `exec.stdin`: the reply comes when the command's agent has taken everything over. */
class StdinWrite extends Operation {
  override readonly fresh = true;
  readonly #settle = Promise.withResolvers<void>();
  readonly #data: Uint8Array;

  constructor(data: Uint8Array) {
    super();
    this.#data = data;
  }

  get done(): Promise<void> {
    return this.#settle.promise;
  }

  override onStarted(): void {
    this.connection?.sendData(this.#data);
    this.connection?.sendEof();
  }
  override onReply(): void {
    this.#settle.resolve();
  }
  protected override onEnd(): void {
    this.#settle.resolve();
  }
  protected override onFailure(error: unknown): void {
    this.#settle.reject(error);
  }
}
