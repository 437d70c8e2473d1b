import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";
import { ignoreOutcome } from "../../platform/abortable.ts";
import { messageOf } from "../../platform/message-of.ts";
import { isOutOfDescriptors, moreDescriptors } from "../../platform/momentary.ts";
import type { NetworkChange } from "../../ports/index.ts";

/** A relay says something every three seconds; one that says nothing for so long hangs. */
const silentMs = 12_000;
/** How long this process is given to read what arrived while it was busy itself. */
const lastChanceMs = 250;
const dialMs = 5_000;
/** Until this process looks again that had no descriptor to look with. */
const blindMs = 1_000;
const firstPauseMs = 250;
const longestPauseMs = 60_000;
/** A relay may end some moments before what it served is seen to have ended. */
const endsTogetherMs = 250;
/** A network that held for so long is given again at once when it is lost. */
const steadyMs = 60_000;

interface RelayLine {
  state?: string;
  reason?: string;
}

/**
 * Watches the relay of one sandbox over its socket, and has another one started when it ends or hangs.
 * States: connecting (again and again while this process has no descriptor), starting (connected, its helper has not answered
 * yet), up, lost (waiting to attach again), closed.
 */
export class KeptNetwork {
  readonly #path: () => Promise<string>;
  readonly #attach: () => Promise<void>;
  readonly #onChange: (change: NetworkChange) => void;
  readonly #ended: () => Promise<boolean>;
  /** Changes are told one after the other: a loss is looked into first. */
  #telling: Promise<void> = Promise.resolve();
  #toldLoss = false;
  readonly #up = Promise.withResolvers<void>();
  #socket: Socket | undefined;
  #silence: NodeJS.Timeout | undefined;
  #retry: NodeJS.Timeout | undefined;
  #work: Promise<void> = Promise.resolve();
  #lostAt: number | undefined;
  #upAt = 0;
  #failures = 0;
  #closed = false;

  /**
   * @param options.path where the relay's socket lies now; no sandbox can replace it.
   * @param options.attach starts a relay in place of the one there was.
   * @param options.ended whether the sandbox itself has ended: a network that ends with it is no loss, and is not told.
   */
  constructor(options: {
    path: () => Promise<string>;
    attach: () => Promise<void>;
    ended: () => Promise<boolean>;
    onChange: (change: NetworkChange) => void;
  }) {
    this.#path = options.path;
    this.#attach = options.attach;
    this.#ended = options.ended;
    this.#onChange = options.onChange;
    // Who does not ask does not hear of it.
    this.#up.promise.catch(() => undefined);
    this.#run(() => this.#connect());
  }

  /** Resolves when the helper has answered for the first time. @throws when it was lost, closed or out of sight before. */
  get up(): Promise<void> {
    return this.#up.promise;
  }

  /** Resolves when nothing of it is under way: no relay is started any more. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#up.reject(new Error("the sandbox ends"));
    clearTimeout(this.#retry);
    this.#drop();
    await this.#work;
  }

  #run(step: () => Promise<void>): void {
    this.#work = this.#work.then(step).catch((error: unknown) => {
      if (isOutOfDescriptors(error)) this.#seeLater(error);
      else this.#lost(messageOf(error));
    });
  }

  /** Whether it is there cannot be looked at: that is no loss, and another relay would end the one that may serve. */
  #seeLater(error: unknown): void {
    this.#drop();
    if (this.#closed) return;
    const message = `whether there is a network cannot be looked at (${messageOf(error)}): ${moreDescriptors}`;
    this.#up.reject(new Error(message, { cause: error }));
    this.#retry = setTimeout(() => this.#run(() => this.#connect()), blindMs).unref();
  }

  async #connect(): Promise<void> {
    if (this.#closed) return;
    const socket = connect(await this.#path());
    await once(socket, "connect", { signal: AbortSignal.timeout(dialMs) });
    if (this.#closed) {
      socket.destroy();
      return;
    }
    this.#socket = socket;
    socket.unref();
    let reason = "its relay ended";
    const lines = createInterface({ input: socket });
    lines.on("line", (text) => {
      const line = parse(text);
      if (line.state === "lost") reason = line.reason ?? reason;
      if (line.state === "up") this.#isUp();
      this.#listen(socket);
    });
    // The close says it. Who reads by lines passes an error on, as one of its own.
    for (const emitter of [socket, lines]) emitter.on("error", () => undefined);
    socket.once("close", () => this.#relayEnded(socket, reason));
    this.#listen(socket);
  }

  /** The relay has said something, or is given its time to. */
  #listen(socket: Socket): void {
    if (this.#socket !== socket) return;
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => {
      this.#silence = setTimeout(
        () => this.#relayEnded(socket, "its relay does not answer"),
        lastChanceMs,
      ).unref();
    }, silentMs).unref();
  }

  #isUp(): void {
    this.#up.resolve();
    if (this.#upAt === 0) this.#upAt = performance.now();
    if (this.#lostAt === undefined) return;
    const afterMs = Math.round(performance.now() - this.#lostAt);
    this.#lostAt = undefined;
    this.#tell(async () => {
      if (this.#toldLoss) this.#onChange({ state: "restored", afterMs });
      this.#toldLoss = false;
    });
  }

  /** What a listener fails at is its own: later changes are told all the same. */
  #tell(step: () => Promise<void>): void {
    this.#telling = this.#telling.then(step).catch(ignoreOutcome);
  }

  /** The engine or the launcher that would say that the sandbox has ended may be gone itself. */
  async #tellLoss(reason: string): Promise<void> {
    if (await this.#endsWithSandbox()) return;
    await delay(endsTogetherMs, undefined, { ref: false });
    if (await this.#endsWithSandbox()) return;
    this.#toldLoss = true;
    this.#onChange({ state: "lost", reason });
  }

  /** Who cannot be looked at counts as there. */
  async #endsWithSandbox(): Promise<boolean> {
    return this.#closed || (await this.#ended().catch(() => false));
  }

  #relayEnded(socket: Socket, reason: string): void {
    if (this.#socket !== socket) return;
    this.#lost(reason);
  }

  #lost(reason: string): void {
    this.#drop();
    if (this.#closed) return;
    this.#up.reject(new Error(reason));
    if (this.#lostAt === undefined) {
      this.#lostAt = performance.now();
      this.#tell(() => this.#tellLoss(reason));
    }
    if (this.#upAt > 0 && performance.now() - this.#upAt > steadyMs) this.#failures = 0;
    this.#upAt = 0;
    const pauseMs = this.#failures === 0 ? 0 : Math.min(firstPauseMs * 2 ** this.#failures, longestPauseMs);
    this.#failures += 1;
    this.#retry = setTimeout(() => {
      this.#run(async () => {
        if (this.#closed) return;
        await this.#attach();
        await this.#connect();
      });
    }, pauseMs).unref();
  }

  #drop(): void {
    clearTimeout(this.#silence);
    this.#socket?.destroy();
    this.#socket = undefined;
  }
}

function parse(text: string): RelayLine {
  try {
    const line: unknown = JSON.parse(text);
    return typeof line === "object" && line !== null ? line : {};
  } catch {
    // Half a line of a relay that died.
    return {};
  }
}
