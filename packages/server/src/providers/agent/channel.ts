import type { Duplex } from "node:stream";
import { BulkRests } from "../../platform/bulk-rests.ts";
import { FairTurns, type Taker } from "../../platform/fair-turns.ts";
import { copyOf } from "../../platform/own-bytes.ts";
import { Unavailable } from "../../ports/errors.ts";
import type { CallOptions } from "../../ports/sandbox-operations.ts";
import { AgentConnection, type AgentFeatures, encodeHello, encodeRequest } from "./connection.ts";
import { runtimeGone, translateDialFailure } from "./failures.ts";
import { type AgentOperationName, knownOperations } from "./known-operations.ts";
import { Call, Collect, type Operation } from "./operation.ts";
import { Places, SharedPlaces } from "./places.ts";

/** Makes a fresh connection to an agent's endpoint. */
export type AgentDialer = (options: { signal: AbortSignal }) => Promise<Duplex>;

export type AgentRequest = { op: AgentOperationName } & Record<string, unknown>;

/** A request, or what makes it for an agent with these features; it may throw what the caller is told instead. */
export type AgentAsk = AgentRequest | ((features: AgentFeatures) => AgentRequest);

/**
 * Operations under way at one agent: those that it answers at once, and those that last as long as a command is followed or
 * a file is moved. Together with idle connections they stay below the 1,024 that an agent takes.
 */
const mostShort = 64;
const mostLasting = 896;
/**
 * Of file operations and figures, those that are answered at once and those that move contents: fewer of each than the sixteen
 * threads that an agent has for it, because it counts one until its thread is back.
 */
const mostOfThreads = 12;
/** Of those that last, the ones that only follow: the other places are for starts of commands, one-shot output and files. */
const mostFollowers = 768;
/**
 * Those that last, over all agents of this process; with as many connections a service of thousands of sandboxes stays well
 * below its descriptors. Who follows leaves a quarter to starts, one-shot output and files, and an owner as much as it has.
 */
const mostLastingEverywhere = 16_384;
const mostFollowersEverywhere = 12_288;
const lastingEverywhere = new SharedPlaces({
  most: mostLastingEverywhere,
  mostFollowers: mostFollowersEverywhere,
});
/** What agents say is dealt with a little in each turn of the loop, over all connections of this process. */
const turnsEverywhere = new FairTurns();
/** Who moves much rests while commands of others begin, likewise. */
export const restsEverywhere = new BulkRests();
/** What somebody waits for, and costs whoever begins it a process: input costs nothing, and could be sent all the time to slow others down. */
const isShort: ReadonlySet<AgentOperationName> = new Set(["exec.start"]);
/** A place that lasts may be held for ever. */
const longestLastingWaitMs = 10_000;
/** Of either kind, those that wait for a place. */
const longestLine = 1_024;
/** As many as operations are often under way at once; dialling again costs more than an idle descriptor. */
const maxIdle = 16;
const idleMs = 10_000;
/** All idle connections of this process: descriptors are a table of the process, and thousands of sandboxes share it. */
const maxIdleEverywhere = 1_024;
let idleEverywhere = 0;
/**
 * The way to one agent: puts each operation on a connection of its own, an idle one when there is one, and bounds how many
 * are under way, and, where that is costly, how many dial. Idle connections are few, short-lived and keep nothing alive. Closing the channel cuts every operation.
 */
export class AgentChannel {
  readonly #dial: AgentDialer;
  readonly #name: string;
  readonly #hello: Buffer;
  readonly #open = new Set<AgentConnection>();
  /** The most recently used last. */
  readonly #idle: { connection: AgentConnection; since: number }[] = [];
  readonly #closing = new AbortController();
  readonly #dialsAtOnce: number;
  #dialling = 0;
  /** Operations that wait for a connection that becomes idle or for their turn to dial: what tries to send each again. */
  readonly #unconnected: (() => void)[] = [];
  readonly #turns: FairTurns;
  readonly #taker: Taker;
  readonly #rests: BulkRests;
  readonly #short: Places;
  readonly #lasting: Places;
  readonly #files: Places;
  readonly #transfers: Places;
  /** What the agent told last; undefined until it has told anything. */
  #features: AgentFeatures | undefined;
  #sweep: NodeJS.Timeout | null = null;

  /**
   * @param options.dialsAtOnce where dialling is costly: beyond so many at a time operations wait, and take what becomes idle.
   * @param options.owner whose sandbox it is, empty for nobody's.
   * @param options.shared bounds what lasts over several channels; all of this process unless given.
   * @param options.turns over several channels, likewise: owners take turns, and below them their sandboxes.
   * @param options.rests over several channels, likewise: of sandboxes, whosever they are.
   */
  constructor(options: {
    dial: AgentDialer;
    token: string;
    name: string;
    owner: string;
    dialsAtOnce?: number;
    shared?: SharedPlaces;
    turns?: FairTurns;
    rests?: BulkRests;
  }) {
    this.#rests = options.rests ?? restsEverywhere;
    this.#turns = options.turns ?? turnsEverywhere;
    // Those of nobody are not one's.
    this.#taker = { principal: options.owner || `sandbox ${options.name}`, owner: options.name };
    this.#dialsAtOnce = options.dialsAtOnce ?? Number.POSITIVE_INFINITY;
    this.#dial = options.dial;
    this.#name = options.name;
    // It stays as long as the sandbox, and would keep a piece of the pool that it was cut from.
    this.#hello = copyOf(encodeHello(options.token));
    const what = `sandbox ${options.name}`;
    const shared = { places: options.shared ?? lastingEverywhere, owner: options.owner };
    this.#short = new Places({ what, most: mostShort, longestLine });
    this.#lasting = new Places({
      what,
      most: mostLasting,
      mostFollowers,
      longestLine,
      longestWaitMs: longestLastingWaitMs,
      shared,
    });
    const ofThreads = { what, most: mostOfThreads, longestLine, longestWaitMs: longestLastingWaitMs };
    this.#files = new Places(ofThreads);
    this.#transfers = new Places({ ...ofThreads, shared });
  }

  /** Sends a request whose whole answer is one reply. @returns that reply. */
  call(request: AgentAsk, options: CallOptions & { fresh?: boolean }): Promise<unknown> {
    const call = new Call({ fresh: options.fresh ?? false });
    this.begin(request, call, options.signal);
    return call.reply;
  }

  /** Sends a request answered by events. @param take is given each; what it throws fails the call, and what it returns is waited for. */
  collect(
    request: AgentAsk,
    take: (event: unknown) => Promise<void> | undefined,
    options: CallOptions,
  ): Promise<void> {
    const collect = new Collect(take);
    this.begin(request, collect, options.signal);
    return collect.done;
  }

  /**
   * Sends a request, once there is a place for it; its answer goes to `operation`, which `signal` ends until the operation
   * lets go of it. One that depends on the agent's features leaves after its welcome, which costs a round trip on the very
   * first connection.
   */
  begin(request: AgentAsk, operation: Operation, signal: AbortSignal): void {
    operation.guard(signal);
    if (operation.over) return;
    const send = () => this.#send(request, operation, signal);
    const waits = typeof request === "function" ? "line" : knownOperations[request.op].waits;
    if (waits === "never") send();
    else {
      const [atOnce, lasting] =
        waits === "threads" ? [this.#files, this.#transfers] : [this.#short, this.#lasting];
      (operation.lasting ? lasting : atOnce).enter(operation, send, { refusable: waits !== "unrefused" });
    }
  }

  #send(request: AgentAsk, operation: Operation, signal: AbortSignal): void {
    if (this.#closing.signal.aborted) {
      operation.fail(runtimeGone(this.#name));
      return;
    }
    if (this.#dialling >= this.#dialsAtOnce && (operation.fresh || this.#idle.length === 0)) {
      this.#unconnected.push(() => {
        if (!operation.over) this.#send(request, operation, signal);
      });
      return;
    }
    try {
      if (typeof request === "function" && this.#features === undefined) {
        const encode = (features: AgentFeatures) => {
          const known = request(features);
          this.#asks(known.op, operation);
          return encodeRequest(known, null);
        };
        void this.#beginFresh(encode, operation, signal);
        return;
      }
      const known = typeof request === "function" ? request(this.#features ?? new Set()) : request;
      this.#asks(known.op, operation);
      const reused = operation.fresh ? undefined : this.#takeIdle();
      if (reused === undefined) {
        void this.#beginFresh(encodeRequest(known, this.#hello), operation, signal);
      } else {
        reused.start(encodeRequest(known, null), operation, () => {
          if (!knownOperations[known.op].again) {
            operation.fail(this.#unknownOutcome(known.op));
            return;
          }
          operation.sentAgain = true;
          void this.#beginFresh(encodeRequest(known, this.#hello), operation, signal);
        });
      }
    } catch (error) {
      operation.fail(error);
    }
  }

  #asks(op: AgentOperationName, operation: Operation): void {
    operation.asked = op;
    if (isShort.has(op)) this.#rests.begun(this.#name);
  }

  close(): void {
    this.#closing.abort(runtimeGone(this.#name));
    for (const places of [this.#short, this.#lasting, this.#files, this.#transfers])
      places.close(() => runtimeGone(this.#name));
    for (const send of this.#unconnected.splice(0)) send();
    for (const connection of [...this.#open]) connection.destroy();
    if (this.#sweep !== null) clearInterval(this.#sweep);
    this.#sweep = null;
  }

  /** @param opening what goes out first: hello and request, or what makes the request once the welcome is there. */
  async #beginFresh(
    opening: Buffer | ((features: AgentFeatures) => Buffer),
    operation: Operation,
    signal: AbortSignal,
  ): Promise<void> {
    let socket: Duplex;
    this.#dialling += 1;
    try {
      socket = await this.#dial({ signal }).finally(() => {
        this.#dialling -= 1;
        this.#connectNext();
      });
    } catch (error) {
      operation.fail(signal.aborted ? signal.reason : translateDialFailure(error, this.#name));
      return;
    }
    if (operation.over || this.#closing.signal.aborted) {
      socket.on("error", () => undefined);
      socket.destroy();
      operation.fail(runtimeGone(this.#name));
      return;
    }
    const connection = new AgentConnection({
      socket,
      name: this.#name,
      turns: this.#turns,
      taker: this.#taker,
      rest: (goOn) => this.#rests.rest(this.#name, goOn),
      onWelcome: (features) => {
        this.#features = features;
      },
      onIdle: (idle) => this.#keep(idle),
      onClosed: (closed) => this.#forget(closed),
    });
    this.#open.add(connection);
    try {
      if (typeof opening === "function") connection.startAfterWelcome(this.#hello, operation, opening);
      else connection.start(opening, operation, null);
    } catch (error) {
      operation.cancel(error);
    }
  }

  #unknownOutcome(op: string): Unavailable {
    return new Unavailable(
      `the connection to sandbox ${this.#name} broke during ${op}; whether it was done is not known`,
    );
  }

  /** While any wait, as many dial as may: whoever ends a dial or brings an idle connection calls this. */
  #connectNext(): void {
    // Who may not have what is there lines up again.
    for (let left = this.#unconnected.length; left > 0; left -= 1) {
      if (this.#idle.length === 0 && this.#dialling >= this.#dialsAtOnce) return;
      this.#unconnected.shift()?.();
    }
  }

  #takeIdle(): AgentConnection | undefined {
    const connection = this.#idle.pop()?.connection;
    if (connection !== undefined) idleEverywhere -= 1;
    connection?.setKeepsProcessAlive(true);
    return connection;
  }

  #keep(connection: AgentConnection): void {
    const isWanted = this.#unconnected.length > 0;
    if (!isWanted && (this.#idle.length >= maxIdle || idleEverywhere >= maxIdleEverywhere)) {
      connection.destroy();
      return;
    }
    idleEverywhere += 1;
    connection.setKeepsProcessAlive(false);
    this.#idle.push({ connection, since: performance.now() });
    this.#sweep ??= setInterval(() => this.#closeOldest(), idleMs / 2).unref();
    this.#connectNext();
  }

  #closeOldest(): void {
    const before = performance.now() - idleMs;
    for (const { connection, since } of [...this.#idle]) if (since <= before) connection.destroy();
    if (this.#idle.length > 0 || this.#sweep === null) return;
    clearInterval(this.#sweep);
    this.#sweep = null;
  }

  #forget(connection: AgentConnection): void {
    this.#open.delete(connection);
    const index = this.#idle.findIndex((entry) => entry.connection === connection);
    if (index < 0) return;
    this.#idle.splice(index, 1);
    idleEverywhere -= 1;
  }
}
