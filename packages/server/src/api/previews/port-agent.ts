import { Agent, type ClientRequest, type ClientRequestArgs } from "node:http";
import type { Duplex } from "node:stream";
import type { ReadTurns } from "../../platform/read-turns.ts";
import type { PortConnection } from "../../ports/sandbox-operations.ts";
import { PortConcurrency } from "./port-concurrency.ts";

/** What a request of ours says beyond what Node's do. */
export interface PortRequestArgs extends ClientRequestArgs {
  /** The port of a sandbox: connections are kept for it alone. */
  portKey: string;
  connect: () => Promise<Duplex & Pick<PortConnection, "holds">>;
}

/** Shorter than most programs keep a connection that nothing comes on, so that it is seldom theirs to close. */
const idleMs = 3_000;
const mostIdleOfPort = 16;
const mostIdle = 256;

/**
 * Connections to ports of sandboxes, each given to one request at a time. One that is kept may be used again only after an
 * answer that was whole and in order, by the same port; what comes on it meanwhile ends it.
 */
export class PortAgent extends Agent {
  readonly #idle = new Map<Duplex, { timer: NodeJS.Timeout; end: () => void; forget: () => void }>();
  readonly #portOf = new WeakMap<Duplex, string>();
  /** What its kept connections must make way for; beside its own connections others may be counted here. */
  readonly concurrency = new PortConcurrency((portKey) => [...(this.freeSockets[portKey] ?? [])]);
  readonly #turns: ReadTurns;

  constructor(options: { keep: boolean; turns: ReadTurns }) {
    super({ keepAlive: options.keep, maxFreeSockets: mostIdleOfPort, scheduling: "lifo" });
    this.#turns = options.turns;
  }

  override createConnection(
    options: ClientRequestArgs,
    callback?: (error: Error | null, stream: Duplex) => void,
  ): undefined {
    const { connect, portKey } = options as PortRequestArgs;
    const give = callback as ((error: Error | null, stream?: Duplex) => void) | undefined;
    connect().then(
      (stream) => {
        this.#turns.pace(stream);
        stream.holds = () => this.#turns.isHolding(stream);
        this.#portOf.set(stream, portKey);
        give?.(null, referable(stream));
      },
      (error: Error) => give?.(error),
    );
    return undefined;
  }

  override getName(options?: ClientRequestArgs): string {
    return (options as PortRequestArgs | undefined)?.portKey ?? "";
  }

  /** @returns whether a connection that is free now may be kept. */
  override keepSocketAlive(socket: Duplex): boolean {
    if (!this.concurrency.mayKeep(this.#portOf.get(socket) ?? "")) return false;
    if (this.#idle.size >= mostIdle || socket.destroyed || socket.readableEnded) return false;
    if (socket.readableLength > 0 || this.#turns.isHolding(socket)) return false;
    const end = () => void socket.destroy();
    const timer = setTimeout(end, idleMs).unref();
    const forget = () => this.#forget(socket);
    this.#idle.set(socket, { timer, end, forget });
    socket.once("end", end).once("close", forget);
    return true;
  }

  override reuseSocket(socket: Duplex, request: ClientRequest): void {
    this.#forget(socket);
    // Which also takes away Node's own guard against bytes that come while nobody has asked.
    super.reuseSocket(socket, request);
  }

  #forget(socket: Duplex): void {
    const idle = this.#idle.get(socket);
    if (idle === undefined) return;
    clearTimeout(idle.timer);
    socket.off("end", idle.end).off("close", idle.forget);
    this.#idle.delete(socket);
  }
}

/** Node asks this of every connection that it uses again; one into a sandbox is held by its request alone. */
function referable(stream: Duplex): Duplex {
  return "ref" in stream ? stream : Object.assign(stream, { ref: () => stream });
}
