import {
  type CallOptions,
  type ExecOperations,
  type FileOperations,
  type PortConnection,
  RuntimeGone,
  type RuntimeId,
  type RuntimeProvider,
  type RuntimeStats,
  type SandboxOperations,
  Unavailable,
} from "../../ports/index.ts";

/**
 * The operations of a runtime, whichever connection its provider has to it now. A provider may replace a connection at
 * any time, and the operations of the old one are then dead; these stay good for as long as the runtime runs.
 */
export class CurrentOperations implements SandboxOperations {
  readonly #provider: RuntimeProvider;
  readonly #runtimeId: RuntimeId;

  constructor(provider: RuntimeProvider, runtimeId: RuntimeId) {
    this.#provider = provider;
    this.#runtimeId = runtimeId;
  }

  get execs(): ExecOperations {
    return this.#now().execs;
  }

  get files(): FileOperations {
    return this.#now().files;
  }

  async setExpiry(expiresInMs: number | null, options: CallOptions): Promise<void> {
    await this.#now().setExpiry(expiresInMs, options);
  }

  async stats(options: CallOptions): Promise<RuntimeStats> {
    return this.#now().stats(options);
  }

  async dialPort(port: number, options: CallOptions): Promise<PortConnection> {
    return this.#now().dialPort(port, options);
  }

  /** @throws Unavailable while there is no connection: whether the runtime has ended is for the inventory to say. */
  #now(): SandboxOperations {
    try {
      return this.#provider.sandbox(this.#runtimeId);
    } catch (error) {
      if (!(error instanceof RuntimeGone)) throw error;
      throw new Unavailable("the sandbox is not connected now; try again in a moment", { cause: error });
    }
  }
}
