import { once } from "node:events";
import net from "node:net";
import type { Duplex } from "node:stream";
import type { Capability } from "@alcove/wire";
import { joinPieces } from "../../src/platform/join-pieces.ts";
import { silentLogger } from "../../src/platform/logger.ts";
import { systemClock } from "../../src/platform/system-clock.ts";
import { type CallOptions, NotFound, type RuntimeId, type SandboxOperations } from "../../src/ports/index.ts";
import type { PortConnection } from "../../src/ports/sandbox-operations.ts";
import { MockProvider } from "../../src/providers/mock/index.ts";
import type { ProviderFactory } from "./test-server.ts";

/** The way to a port of this machine: its own, or an agent's. */
export type PortDialer = (port: number, options: CallOptions) => Promise<PortConnection>;

/**
 * A provider of simulated sandboxes whose ports are programs of the test: `listen` takes the place of starting one inside.
 * Every sandbox has the same.
 */
export class TestPorts extends MockProvider {
  override readonly capabilities: ReadonlySet<Capability>;
  /** Connections that were made and have not closed. */
  readonly open = new Set<Duplex>();
  dials = 0;
  readonly #programs = new Map<number, number>();
  readonly #byRuntime = new Map<RuntimeId, Set<Duplex>>();

  readonly #by: PortDialer;

  /** @param by dials the programs; directly unless given. */
  constructor(by: PortDialer = dialDirectly) {
    super(mockOptions);
    this.#by = by;
    this.capabilities = new Set([...new MockProvider(mockOptions).capabilities, "ports"]);
  }

  /** @returns the provider's factory for a test server. */
  get factory(): ProviderFactory {
    return async () => this;
  }

  /** From now on `port` of every sandbox is this server of the test's. */
  async listen(port: number, server: net.Server): Promise<Disposable> {
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    this.#programs.set(port, (server.address() as net.AddressInfo).port);
    return {
      [Symbol.dispose]: () => {
        this.#programs.delete(port);
        server.close();
        if ("closeAllConnections" in server)
          (server as { closeAllConnections(): void }).closeAllConnections();
      },
    };
  }

  override sandbox(runtimeId: RuntimeId): SandboxOperations {
    const inner = super.sandbox(runtimeId);
    return {
      execs: inner.execs,
      files: inner.files,
      setExpiry: (ms, options) => inner.setExpiry(ms, options),
      stats: (options) => inner.stats(options),
      dialPort: (port, options) => this.#dial(runtimeId, port, options),
    };
  }

  override async destroy(runtimeId: RuntimeId, options: CallOptions): Promise<void> {
    for (const stream of this.#byRuntime.get(runtimeId) ?? []) stream.destroy();
    await super.destroy(runtimeId, options);
  }

  async #dial(runtimeId: RuntimeId, port: number, options: CallOptions): Promise<PortConnection> {
    const at = this.#programs.get(port);
    if (at === undefined) throw new NotFound(`nothing listens on port ${port}`);
    this.dials += 1;
    const stream = await this.#by(at, options);
    const ofIt = this.#byRuntime.get(runtimeId) ?? new Set();
    this.#byRuntime.set(runtimeId, ofIt.add(stream));
    this.open.add(stream);
    stream.once("close", () => {
      this.open.delete(stream);
      ofIt.delete(stream);
    });
    return stream;
  }
}

async function dialDirectly(port: number, { signal }: CallOptions): Promise<PortConnection> {
  const socket = net.connect({ host: "127.0.0.1", port, allowHalfOpen: true, noDelay: true });
  // As what the agent carries.
  joinPieces(socket);
  await once(socket, "connect", { signal });
  return socket;
}

const mockOptions = {
  config: { defaultImage: "mock", maxWorkers: 1 },
  logger: silentLogger,
  clock: systemClock,
};
