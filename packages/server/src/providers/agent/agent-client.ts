import type { BulkRests } from "../../platform/bulk-rests.ts";
import type { FairTurns } from "../../platform/fair-turns.ts";
import type { Logger } from "../../platform/logger.ts";
import {
  BadRequest,
  type CallOptions,
  type ExecId,
  type ExecOperations,
  type FileOperations,
  type PortConnection,
  type RuntimeStats,
  type SandboxId,
  type SandboxOperations,
} from "../../ports/index.ts";
import { type AgentAsk, AgentChannel, type AgentDialer } from "./channel.ts";
import { EventsFeed } from "./events-feed.ts";
import { AgentExecs, type CommandGroups } from "./exec-operations.ts";
import { AgentFiles } from "./file-operations.ts";
import type { SharedTable } from "./places.ts";
import { PortDial } from "./port-stream.ts";
import { numberOf, objectOf, optionalSizeOf, optionalTextOf, textOf } from "./reading.ts";

/** What an agent is told about the sandbox it serves; what is absent stays as it is. */
export interface AgentConfigure {
  sandboxId: SandboxId;
  hostname?: string;
  env?: Record<string, string>;
  user?: string;
  workdir?: string;
  expiresInMs: number | null;
  execCaps?: string[];
  ringBytes?: number;
}

export interface AgentInfo {
  version: string;
  agent: string;
  pid: number;
  uptimeMs: number;
  sandboxId: string | null;
  execsRunning: number;
}

/** What a copy of a machine that stood still must not share with the others. */
export interface AgentRenewal {
  realtime: Date;
  /** 32 to 256 bytes. */
  entropy: Uint8Array;
  hostname?: string;
}

/**
 * A sandbox, through the agent inside it. Makes no connection before the first call; disposing cuts what is under way
 * and leaves the sandbox alone. A signal ends a call until it resolves; what it resolved to is its holder's.
 */
export class AgentClient implements SandboxOperations, AsyncDisposable {
  readonly execs: ExecOperations;
  readonly files: FileOperations;
  readonly #channel: AgentChannel;
  readonly #feed: EventsFeed;
  readonly #token: string;

  /**
   * @param options.groups makes control groups for single commands; "own": the agent does, as the init of a machine; absent:
   * there are none.
   */
  constructor(options: {
    dial: AgentDialer;
    token: string;
    name: string;
    /** Whose sandbox it is; empty for nobody's. */
    owner: string;
    /** Unset: any number. */
    dialsAtOnce?: number;
    logger: Logger;
    groups?: CommandGroups | "own";
    /** Of the agents that are one user to the kernel; absent: this one's user is its own. */
    watches?: SharedTable;
    /** In which what agents say is dealt with; those of this process unless given. */
    turns?: FairTurns;
    /** Which whoever moves much takes while commands of others begin, likewise. */
    rests?: BulkRests;
  }) {
    const { name, owner, watches } = options;
    const own: CommandGroups = {
      lend: async (execId, limits, call) => {
        await this.makeGroup(execId, limits, call);
        // It goes with its command.
        return () => undefined;
      },
    };
    this.#token = options.token;
    this.#channel = new AgentChannel(options);
    this.#feed = new EventsFeed({ channel: this.#channel, logger: options.logger.child({ sandbox: name }) });
    this.execs = new AgentExecs({
      channel: this.#channel,
      feed: this.#feed,
      name,
      groups: options.groups === "own" ? own : options.groups,
    });
    this.files = new AgentFiles({
      channel: this.#channel,
      ...(watches === undefined ? {} : { watches: { table: watches, owner } }),
    });
  }

  /** Binds the agent to a sandbox and to this client's token. Can be repeated. */
  async configure(request: AgentConfigure, options: CallOptions): Promise<void> {
    await this.#channel.call(
      {
        op: "sandbox.configure",
        sandbox_id: request.sandboxId,
        token: this.#token,
        hostname: request.hostname,
        env: request.env,
        user: request.user,
        workdir: request.workdir,
        expires_in_ms: request.expiresInMs,
        exec_caps: request.execCaps,
        ring_bytes: request.ringBytes,
      },
      options,
    );
  }

  async info(options: CallOptions): Promise<AgentInfo> {
    const reply = objectOf(await this.#channel.call({ op: "sandbox.info" }, options), "reply");
    return {
      version: String(reply.version),
      agent: textOf(reply, "agent"),
      pid: numberOf(reply, "pid"),
      uptimeMs: numberOf(reply, "uptime_ms"),
      sandboxId: optionalTextOf(reply, "sandbox_id") ?? null,
      execsRunning: numberOf(reply, "execs_running"),
    };
  }

  /** Makes a machine that was restored from a snapshot differ from all others of it. @throws BadRequest for an older agent. */
  async renew(renewal: AgentRenewal, options: CallOptions): Promise<void> {
    const ask: AgentAsk = (features) => {
      if (!features.has("renew"))
        throw new BadRequest(
          "the agent of this sandbox cannot renew a machine: it is older than the service",
        );
      return {
        op: "sandbox.renew",
        realtime: renewal.realtime.getTime(),
        entropy: Buffer.from(renewal.entropy).toString("hex"),
        hostname: renewal.hostname,
      };
    };
    await this.#channel.call(ask, options);
  }

  /** Has the agent make a control group for the command that is started next with this id. */
  async makeGroup(
    execId: ExecId,
    limits: { memoryMb?: number; pids?: number },
    options: CallOptions,
  ): Promise<void> {
    const ask: AgentAsk = (features) => {
      if (!features.has("own_groups"))
        throw new BadRequest(
          "the agent of this sandbox makes no control groups: it is older than the service, or its kernel has none",
        );
      return {
        op: "exec.group",
        exec_id: execId,
        memory_bytes: limits.memoryMb === undefined ? undefined : limits.memoryMb * 1024 * 1024,
        pids: limits.pids,
      };
    };
    await this.#channel.call(ask, options);
  }

  async shutdown(options: CallOptions): Promise<void> {
    await this.#channel.call({ op: "sandbox.shutdown" }, options);
  }

  /** Calls back once when the agent is gone; starts the connection that tells. @returns how to stop listening. */
  onGone(listener: () => void): () => void {
    return this.#feed.onGone(listener);
  }

  async setExpiry(expiresInMs: number | null, options: CallOptions): Promise<void> {
    await this.#channel.call({ op: "sandbox.expiry", expires_in_ms: expiresInMs }, options);
  }

  async stats(options: CallOptions): Promise<RuntimeStats> {
    const reply = objectOf(await this.#channel.call({ op: "sandbox.stats" }, options), "reply");
    const stats: RuntimeStats = {};
    for (const [key, wireKey] of statsKeys) {
      const value = optionalSizeOf(reply, wireKey);
      if (value !== undefined) stats[key] = value;
    }
    return stats;
  }

  dialPort(port: number, options: CallOptions): Promise<PortConnection> {
    const dial = new PortDial();
    this.#channel.begin({ op: "port.dial", port }, dial, options.signal);
    return dial.connected;
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#feed.close();
    this.#channel.close();
    return Promise.resolve();
  }
}

const statsKeys = [
  ["cpuUsageMs", "cpu_usage_ms"],
  ["memoryBytes", "memory_bytes"],
  ["memoryLimitBytes", "memory_limit_bytes"],
  ["pids", "pids"],
  ["pidsLimit", "pids_limit"],
  ["diskBytes", "disk_bytes"],
  ["diskLimitBytes", "disk_limit_bytes"],
] as const satisfies readonly (readonly [keyof RuntimeStats, string])[];
