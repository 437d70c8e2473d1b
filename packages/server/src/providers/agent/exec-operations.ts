import { setTimeout as sleep } from "node:timers/promises";
import { abortable, ignoreOutcome } from "../../platform/abortable.ts";
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
  type KillOptions,
  ownLimit,
  refuseOwnLimits,
  Unavailable,
  type WindowSize,
} from "../../ports/index.ts";
import type { AgentAsk, AgentChannel, AgentRequest } from "./channel.ts";
import type { EventsFeed } from "./events-feed.ts";
import { listExecs } from "./exec-list.ts";
import { ExecFollow } from "./exec-view.ts";
import { ConnectionBroke } from "./failures.ts";
import { Call, Operation } from "./operation.ts";
import { execInfoOf, inputTakenOf, numberOf } from "./reading.ts";

/** The agent counts input that has a name. */
const inputFeature = "input";
/** It tells how much it counted, and input goes on at an offset. */
const inputOffsetFeature = "input_offset";
/** It remembers how much input will come, and tells while the end of that has not. */
const inputBytesFeature = "input_bytes";
/** How often what can be repeated is done while connections break under it. */
const mostTries = 5;
const pauseMs = 100;

/** The agent starts commands in control groups that are lent to it. */
const groupFeature = "exec_group";

/** Makes control groups for single commands, outside of the sandbox or, in a machine of its own, by its agent. */
export interface CommandGroups {
  /**
   * Makes one with the limits and lends it to the agent, for the command that is started next with this id.
   * @returns to be called when that start has succeeded or failed: from then on the group goes once it is empty.
   */
  lend(
    execId: ExecId,
    limits: { memoryMb?: number; pids?: number },
    options: CallOptions,
  ): Promise<() => void>;
}

/** Commands of one sandbox, through its agent. docs/agent-protocol.md, Exec operations. */
export class AgentExecs implements ExecOperations {
  readonly #channel: AgentChannel;
  readonly #feed: EventsFeed;
  readonly #name: string;
  readonly #groups: CommandGroups | undefined;
  /** The last list that was asked for. */
  #listed: Promise<void> = Promise.resolve();

  constructor(options: {
    channel: AgentChannel;
    feed: EventsFeed;
    name: string;
    groups: CommandGroups | undefined;
  }) {
    this.#groups = options.groups;
    this.#channel = options.channel;
    this.#feed = options.feed;
    this.#name = options.name;
  }

  /** Once sent, a start is known by its id: one whose connection breaks is sent again, or found to run. */
  start(spec: ExecSpec, options: CallOptions): Promise<ExecView> {
    return this.#inGroup(spec, options, { followed: true }, () => this.#start(spec, options));
  }

  startDetached(spec: ExecSpec, options: CallOptions): Promise<{ pid: number }> {
    return this.#inGroup(spec, options, { followed: false }, () => this.#startDetached(spec, options));
  }

  /** Does a start with a control group lent to it, where its limits need one. */
  async #inGroup<T>(
    spec: ExecSpec,
    options: CallOptions,
    way: { followed: boolean },
    send: () => Promise<T>,
  ): Promise<T> {
    const start = () => {
      // Once, before it is sent: the end may come before the answer, and what is sent again is the same command.
      this.#feed.willStart(spec.execId, way);
      return send();
    };
    const field = ownLimit(spec.limits);
    if (field === undefined) return start();
    const { memoryMb, pids } = spec.limits ?? {};
    if (this.#groups === undefined) refuseOwnLimits(spec.limits);
    const ask: AgentAsk = (features) => {
      if (features.has(groupFeature)) return { op: "sandbox.info" };
      throw new BadRequest(
        `${field} is unknown to the agent of this sandbox, which is older than the service`,
      );
    };
    await this.#channel.call(ask, options);
    const given = {
      ...(memoryMb === undefined ? {} : { memoryMb }),
      ...(pids === undefined ? {} : { pids }),
    };
    const lent = await this.#groups?.lend(spec.execId, given, options);
    try {
      return await start();
    } finally {
      lent?.();
    }
  }

  #start(spec: ExecSpec, options: CallOptions): Promise<ExecView> {
    return this.#persist(options.signal, async (again) => {
      const onLeft = () => this.#feed.wasLeft();
      const follow = new ExecFollow({ name: this.#name, again, onLeft });
      let named = false;
      const ask = startAsk(spec, { follow: true, onNamed: () => (named = true) });
      this.#channel.begin(follow.acknowledging(ask), follow, options.signal);
      try {
        const pid = numberOf(await follow.reply, "pid");
        return follow.view(spec.execId, pid, named ? 0 : undefined, { counted: named });
      } catch (error) {
        if (!((again || follow.sentAgain) && error instanceof Conflict)) throw error;
        const { input } = spec;
        const attach = {
          from: 0,
          follow: true,
          lossless: true,
          again: true,
          ...(input === undefined ? {} : { input }),
        };
        const view = await this.attach(spec.execId, { ...options, ...attach });
        if (isStartOf(spec, view.info)) return view;
        await view[Symbol.asyncDispose]();
        throw error;
      }
    });
  }

  #startDetached(spec: ExecSpec, options: CallOptions): Promise<{ pid: number }> {
    return this.#persist(options.signal, async (again) => {
      const call = new Call({ fresh: false });
      this.#channel.begin(startAsk(spec, { follow: false }), call, options.signal);
      try {
        return { pid: numberOf(await call.reply, "pid") };
      } catch (error) {
        if (!((again || call.sentAgain) && error instanceof Conflict)) throw error;
        const info = await this.get(spec.execId, options);
        if (isStartOf(spec, info)) return { pid: info.pid };
        throw error;
      }
    });
  }

  async attach(
    execId: ExecId,
    options: CallOptions & {
      from: number;
      follow: boolean;
      lossless: boolean;
      input?: string;
      again?: boolean;
    },
  ): Promise<ExecView & { info: ExecInfo }> {
    const again = options.again === true;
    const follow = new ExecFollow({ name: this.#name, follower: options.follow && !again, again });
    const { from, lossless, input } = options;
    const request = { op: "exec.attach", exec_id: execId, from, follow: options.follow, lossless } as const;
    let counted = false;
    const ask: AgentAsk =
      input === undefined
        ? request
        : (features) => {
            counted = features.has(inputFeature);
            return counted ? { ...request, input } : request;
          };
    const acks = options.follow && lossless;
    this.#channel.begin(acks ? follow.acknowledging(ask) : ask, follow, options.signal);
    const reply = await follow.reply;
    const info = execInfoOf(reply);
    return { ...follow.view(execId, info.pid, inputTakenOf(reply), { counted }), info };
  }

  async get(execId: ExecId, options: CallOptions): Promise<ExecInfo> {
    const ask = () => this.#channel.call({ op: "exec.get", exec_id: execId }, options);
    return execInfoOf(await this.#persist(options.signal, ask));
  }

  /** One list after the other: each is held as a whole. */
  list(options: CallOptions): Promise<ExecInfo[]> {
    const listed = this.#listed.then(() => {
      options.signal.throwIfAborted();
      return listExecs(this.#channel, options);
    });
    this.#listed = listed.then(ignoreOutcome, ignoreOutcome);
    return abortable(listed, options.signal);
  }

  async writeStdin(
    execId: ExecId,
    data: Uint8Array,
    options: CallOptions & { close: boolean; input?: string; offset?: number; again?: boolean },
  ): Promise<void> {
    if (data.length > 0) await this.#writeOnce(execId, data, options);
    if (!options.close) return;
    await this.#persist(options.signal, async (again) => {
      const call = new Call({ fresh: false });
      this.#channel.begin({ op: "exec.stdin_close", exec_id: execId }, call, options.signal);
      try {
        await call.reply;
      } catch (error) {
        // A command that has read what it wanted may end before its input is closed: all was taken, nothing is left to do.
        const done = data.length > 0 || again || call.sentAgain || options.again === true;
        if (!done || !(error instanceof Conflict)) throw error;
      }
    });
  }

  /** Under a name the agent takes it once, however often it is sent. */
  async #writeOnce(
    execId: ExecId,
    data: Uint8Array,
    options: CallOptions & { input?: string; offset?: number; again?: boolean },
  ): Promise<void> {
    const { signal, input, offset = 0, again = false } = options;
    let named = false;
    const write = async (tried: boolean) => {
      const writing = new StdinWrite(data);
      const request = { op: "exec.stdin", exec_id: execId } as const;
      const ask: AgentAsk = (features) => {
        named = input !== undefined && features.has(inputFeature);
        if (again && !named)
          throw new Unavailable(
            `the connection to sandbox ${this.#name} broke; how much of the input arrived is not known`,
          );
        if (!named) return request;
        const from = offset > 0 && features.has(inputOffsetFeature) ? { offset } : {};
        return { ...request, input, ...from, again: again || tried };
      };
      this.#channel.begin(ask, writing, signal);
      await writing.done;
    };
    await this.#persist(signal, write, () => named);
  }

  async inputTaken(execId: ExecId, input: string, options: CallOptions): Promise<number | undefined> {
    const ask: AgentAsk = (features) => ({
      op: "exec.get",
      exec_id: execId,
      ...(features.has(inputOffsetFeature) ? { input } : {}),
    });
    return inputTakenOf(await this.#persist(options.signal, () => this.#channel.call(ask, options)));
  }

  /**
   * Does what can be done again when a connection breaks under it. A sandbox that has ended takes no connection, which
   * ends this at once.
   */
  async #persist<T>(
    signal: AbortSignal,
    attempt: (again: boolean) => Promise<T>,
    mayRepeat: () => boolean = () => true,
  ): Promise<T> {
    for (let tries = 1; ; tries += 1) {
      try {
        return await attempt(tries > 1);
      } catch (error) {
        const broke = error instanceof ConnectionBroke && !signal.aborted;
        if (!broke || !mayRepeat() || tries >= mostTries) throw error;
      }
      await pause(pauseMs * tries, signal);
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

  async kill(execId: ExecId, options: CallOptions & KillOptions): Promise<ExecInfo> {
    const { reason, inputLostBytes: lost } = options;
    const request = { op: "exec.kill", exec_id: execId, reason } as const;
    const ask: AgentAsk =
      lost === undefined
        ? request
        : (features) => (features.has(inputBytesFeature) ? { ...request, input_lost: lost } : request);
    return execInfoOf(await this.#channel.call(ask, options));
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

/** @throws the signal's reason. */
async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => signal.throwIfAborted());
}

/** Whether the command that has the id is the one asked for; a record holds the beginning of a long command. */
function isStartOf(spec: ExecSpec, info: ExecInfo): boolean {
  return spec.command.startsWith(info.command.replace(/…$/, "")) && spec.detached === info.detached;
}

/**
 * Limits are only asked of agents that know them, and input is only named to agents that count it.
 * @param options.onNamed called when the request names its input.
 */
function startAsk(spec: ExecSpec, options: { follow: boolean; onNamed?: () => void }): AgentAsk {
  const { limits, inputBytes } = spec;
  const input = options.follow ? spec.input : undefined;
  if (limits === undefined && input === undefined && inputBytes === undefined)
    return startRequest(spec, options);
  return (features) => {
    const request = startRequest(spec, options);
    if (input !== undefined && features.has(inputFeature)) {
      request.input = input;
      options.onNamed?.();
    }
    if (inputBytes !== undefined && features.has(inputBytesFeature)) request.input_bytes = inputBytes;
    if (limits === undefined) return request;
    if (!features.has("limits"))
      throw new BadRequest(
        "limits are unknown to the agent of this sandbox, which is older than the service",
      );
    const { cpuTimeMs, outputBytes } = limits;
    const grouped = ownLimit(limits) === undefined ? {} : { own_group: true };
    return { ...request, limits: { cpu_ms: cpuTimeMs, output_bytes: outputBytes, ...grouped } };
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
  override readonly lasting = true;
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
