import { join } from "node:path";
import type { Logger } from "../../platform/logger.ts";
import type { SandboxId, SandboxOperations } from "../../ports/index.ts";
import { RuntimeGone, type RuntimeId } from "../../ports/index.ts";
import { AgentClient, type AgentDialer, pinnedUnixDialer, type SharedTable } from "../agent/index.ts";
import { agentSocket } from "./container-spec.ts";
import type { EngineClient } from "./engine-client.ts";
import { execDialer } from "./exec-dialer.ts";
import type { RuntimeRecord, RuntimeRecords } from "./runtime-records.ts";
import { runtimeStats } from "./runtime-stats.ts";

export const socketName = agentSocket.slice(agentSocket.lastIndexOf("/") + 1);

/**
 * Programs that the engine starts at once for connections to one agent. Each takes it a tenth of a second of processor time,
 * and most operations end sooner than that and leave theirs.
 */
const bridgesAtOnce = 4;

/** A running sandbox and the way to its agent. Disposing cuts the connections and leaves the sandbox alone. */
export class ConnectedRuntime implements AsyncDisposable {
  readonly runtimeId: RuntimeId;
  readonly sandboxId: SandboxId;
  /** Empty: nobody's. */
  readonly ownerId: string;
  readonly container: string;
  readonly client: AgentClient;
  readonly operations: SandboxOperations;
  /** What the socket's name led to; absent where there is none on this machine. */
  readonly socket: RuntimeRecord["socket"];
  readonly #close: () => Promise<void>;

  private constructor(options: {
    record: RuntimeRecord;
    container: string;
    engine: EngineClient;
    client: AgentClient;
    socket: RuntimeRecord["socket"];
    close: () => Promise<void>;
  }) {
    const { client, engine, container } = options;
    this.runtimeId = options.record.runtimeId as RuntimeId;
    this.sandboxId = options.record.sandboxId as SandboxId;
    this.ownerId = options.record.sandbox?.ownerId ?? "";
    this.container = container;
    this.client = client;
    this.socket = options.socket;
    this.#close = options.close;
    this.operations = {
      execs: client.execs,
      files: client.files,
      setExpiry: (expiresInMs, call) => client.setExpiry(expiresInMs, call),
      stats: (call) => runtimeStats({ engine, container, client }, call),
      dialPort: (port, call) => client.dialPort(port, call),
    };
  }

  /**
   * Opens the way to the agent; speaks to nobody yet.
   * @throws RuntimeGone when the socket is gone or is not the one the agent made.
   */
  static async open(options: {
    record: RuntimeRecord;
    records: RuntimeRecords;
    container: string;
    engine: EngineClient;
    watches: SharedTable;
    logger: Logger;
  }): Promise<ConnectedRuntime> {
    const { record, engine, container } = options;
    const name = record.sandboxId;
    const way =
      record.transport === "stdio"
        ? {
            dial: execDialer({ engine, container, name }),
            dialsAtOnce: bridgesAtOnce,
            close: async () => undefined,
            socket: undefined,
          }
        : await openSocket(
            record,
            join(options.records.socketFolder(record.runtimeId as RuntimeId), socketName),
          );
    const owner = record.sandbox?.ownerId ?? "";
    const client = new AgentClient({
      dial: way.dial,
      ...("dialsAtOnce" in way ? { dialsAtOnce: way.dialsAtOnce } : {}),
      token: record.token,
      name,
      owner,
      watches: options.watches,
      logger: options.logger,
    });
    return new ConnectedRuntime({ record, container, engine, client, socket: way.socket, close: way.close });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.client[Symbol.asyncDispose]();
    await this.#close();
  }
}

async function openSocket(
  record: RuntimeRecord,
  path: string,
): Promise<{ dial: AgentDialer; close: () => Promise<void>; socket: RuntimeRecord["socket"] }> {
  const gone = (cause: unknown) => new RuntimeGone(`sandbox ${record.sandboxId} has ended`, { cause });
  const pinned = await pinnedUnixDialer(path).catch((error) => {
    throw error instanceof Error && "code" in error && error.code === "ENOENT" ? gone(error) : error;
  });
  const known = record.socket;
  if (
    known !== undefined &&
    (known.device !== pinned.identity.device || known.inode !== pinned.identity.inode)
  ) {
    await pinned.close();
    throw gone(new Error(`${path} is not the socket the agent made; something replaced it`));
  }
  return { dial: pinned.dial, close: pinned.close, socket: pinned.identity };
}
