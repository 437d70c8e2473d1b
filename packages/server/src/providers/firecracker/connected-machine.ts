import { join } from "node:path";
import type { Logger } from "../../platform/logger.ts";
import { orMissing } from "../../platform/missing.ts";
import { RuntimeGone, type RuntimeId, type SandboxId, type SandboxOperations } from "../../ports/index.ts";
import { AgentClient, pinnedVsockDialer, type SharedTable } from "../agent/index.ts";
import { agentPort } from "./boot-arguments.ts";
import type { MachineConsole } from "./machine-console.ts";
import { vsockSocket } from "./machine-process.ts";
import type { RuntimeRecord } from "./runtime-records.ts";

/** A running machine, the way to its agent and its console. Disposing cuts both and leaves the machine alone. */
export class ConnectedMachine implements AsyncDisposable {
  readonly runtimeId: RuntimeId;
  readonly sandboxId: SandboxId;
  /** Empty: nobody's. */
  readonly ownerId: string;
  readonly client: AgentClient;
  readonly #console: MachineConsole;
  readonly #closeDialer: () => Promise<void>;

  private constructor(options: {
    record: RuntimeRecord;
    client: AgentClient;
    console: MachineConsole;
    closeDialer: () => Promise<void>;
  }) {
    this.runtimeId = options.record.runtimeId as RuntimeId;
    this.sandboxId = options.record.sandboxId as SandboxId;
    this.ownerId = options.record.sandbox?.ownerId ?? "";
    this.client = options.client;
    this.#console = options.console;
    this.#closeDialer = options.closeDialer;
  }

  /** Speaks to nobody yet. Owns the console from now on. @throws RuntimeGone when its vsock is not there. */
  static async open(options: {
    record: RuntimeRecord;
    /** Of the machine's sockets. */
    folder: string;
    console: MachineConsole;
    /** Whether its agent makes control groups for single commands. */
    ownGroups: boolean;
    watches: SharedTable;
    logger: Logger;
  }): Promise<ConnectedMachine> {
    const { record, folder, console } = options;
    const pinned = await orMissing(pinnedVsockDialer(join(folder, vsockSocket), agentPort), undefined);
    if (pinned === undefined) {
      await console[Symbol.asyncDispose]();
      throw new RuntimeGone(`runtime ${record.runtimeId} is not running`);
    }
    const client = new AgentClient({
      dial: pinned.dial,
      token: record.token,
      name: record.sandboxId,
      owner: record.sandbox?.ownerId ?? "",
      ...(options.ownGroups ? { groups: "own" as const } : {}),
      watches: options.watches,
      logger: options.logger,
    });
    return new ConnectedMachine({ record, client, console, closeDialer: pinned.close });
  }

  get operations(): SandboxOperations {
    return this.client;
  }

  /** Takes what its console has not been read of. */
  drainConsole(): Promise<void> {
    return this.#console.drain();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.client[Symbol.asyncDispose]();
    await this.#closeDialer();
    await this.#console[Symbol.asyncDispose]();
  }
}
