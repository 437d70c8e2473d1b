import type { Static } from "typebox";
import {
  BadRequest,
  type CallOptions,
  type Clock,
  RuntimeGone,
  type RuntimeId,
  type RuntimeStats,
  type SandboxOperations,
  type Timer,
} from "../../ports/index.ts";
import { JournaledExecs } from "../exec-journal/index.ts";
import { type BackendCalls, isRefusal } from "./backend-calls.ts";
import { CommandRunner } from "./command-runner.ts";
import { type backendCapabilities, type ExpiryRequest, SandboxAnswer } from "./contract-schemas.ts";
import { CustomFiles } from "./custom-files.ts";

export type BackendCapability = (typeof backendCapabilities)[number];

const defaultWorkdir = "/workspace";
const inputHoldsBytes = 262_144;
const consoleLines = 1_000;
const seenFreshMs = 250;
const lookMs = 5_000;
/** Longest time one timer holds. */
const timerAtMostMs = 2 ** 31 - 1;
const isRunning = (state: string) => state.toLowerCase() === "running";

/** One sandbox of the backend: running until its end is seen (`onGone`) or made (`end`), or until it is let go of. */
export class CustomSandbox implements SandboxOperations {
  readonly execs: JournaledExecs;
  readonly files: CustomFiles;
  readonly runtimeId: RuntimeId;
  readonly #calls: BackendCalls;
  readonly #clock: Clock;
  readonly #has: (capability: BackendCapability) => boolean;
  readonly #onGone: (reason: string) => void;
  readonly #onExpired: () => void;
  readonly #closed = new AbortController();
  readonly #lines: string[] = [];
  #expiry: Timer | undefined;
  #look: Promise<boolean> | undefined;
  /** When it was looked at last, something else answered in the backend's place. */
  #isHidden = false;
  #seenAt = Number.NEGATIVE_INFINITY;

  constructor(options: {
    runtimeId: RuntimeId;
    calls: BackendCalls;
    clock: Clock;
    ringBytes: number | undefined;
    silenceMs: number;
    user: string | undefined;
    workdir: string | undefined;
    /** Whose it is, empty: nobody's. */
    ownerId: string;
    has: (capability: BackendCapability) => boolean;
    /** It was seen to have ended. */
    onGone: (reason: string) => void;
    /** Its time is over. */
    onExpired: () => void;
  }) {
    this.runtimeId = options.runtimeId;
    this.#calls = options.calls;
    this.#clock = options.clock;
    this.#has = options.has;
    this.#onGone = options.onGone;
    this.#onExpired = options.onExpired;
    const common = {
      calls: options.calls,
      path: ["sandboxes", options.runtimeId],
      taker: { principal: options.ownerId || `sandbox ${options.runtimeId}`, owner: options.runtimeId },
      closed: this.#closed.signal,
      confirm: () => this.confirm(),
      isHidden: () => this.#isHidden,
    };
    this.execs = new JournaledExecs({
      runner: new CommandRunner({
        ...common,
        user: options.user,
        workdir: options.workdir ?? defaultWorkdir,
        silenceMs: options.silenceMs,
        canReattach: () => options.has("reattach"),
        onUnreadable: (line) => this.#note(line),
      }),
      clock: options.clock,
      what: "sandbox of the backend",
      inputHoldsBytes,
      ringBytes: options.ringBytes,
      onEvent: (line) => this.#note(line),
    });
    this.files = new CustomFiles({ ...common, isAnnounced: () => options.has("files") });
    this.#note(`sandbox ${options.runtimeId} of the backend is reached`);
  }

  async setExpiry(expiresInMs: number | null, options: CallOptions): Promise<void> {
    this.#closed.signal.throwIfAborted();
    if (this.#has("expiry")) {
      const request = {
        method: "PUT" as const,
        path: ["sandboxes", this.runtimeId, "expiry"],
        json: { expires_in_ms: expiresInMs } satisfies Static<typeof ExpiryRequest>,
        known: async (error: unknown) => {
          if (!isRefusal(error, 404)) return undefined;
          return (await this.confirm()) ? await this.#calls.hiddenBy(error, options) : gone();
        },
      };
      await this.#calls.tell("set an expiry", request, options);
    }
    this.watchExpiry(expiresInMs);
  }

  /** This service ends the sandbox at its time itself; where the backend does too, that holds without the service. */
  watchExpiry(afterMs: number | null): void {
    this.#expiry?.cancel();
    this.#expiry = undefined;
    if (afterMs === null || this.#closed.signal.aborted) return;
    const partMs = Math.min(afterMs, timerAtMostMs);
    this.#expiry = this.#clock.setTimer(partMs, () =>
      partMs < afterMs ? this.watchExpiry(afterMs - partMs) : this.#onExpired(),
    );
  }

  async stats(): Promise<RuntimeStats> {
    this.#closed.signal.throwIfAborted();
    return {};
  }

  async dialPort(port: number): Promise<never> {
    throw new BadRequest(
      `provider custom carries no connections to ports (capability "ports"); port ${port} cannot be reached through this service`,
    );
  }

  logs(lines: number): string[] {
    return this.#lines.slice(Math.max(0, this.#lines.length - lines));
  }

  /** Whether it is still there, as far as can be told: a backend that cannot be asked has not lost it. */
  async confirm(): Promise<boolean> {
    if (this.#closed.signal.aborted) return false;
    if (performance.now() - this.#seenAt < seenFreshMs) return true;
    this.#look ??= this.#ask().finally(() => {
      this.#look = undefined;
    });
    return await this.#look;
  }

  async #ask(): Promise<boolean> {
    const options = { signal: this.#closed.signal };
    let isGone = false;
    const known = async (error: unknown) => {
      isGone = isRefusal(error, 404, 410);
      return undefined;
    };
    const path = ["sandboxes", this.runtimeId];
    try {
      const request = { method: "GET" as const, path, timeoutMs: lookMs, known };
      const { state } = await this.#calls.read("look for a sandbox", SandboxAnswer, request, options);
      isGone = !isRunning(state);
    } catch {
      this.#isHidden = isGone && !(await this.#calls.isThere(options));
      if (!isGone || this.#isHidden) return !this.#closed.signal.aborted;
    }
    this.#isHidden = false;
    if (!isGone) {
      this.#seenAt = performance.now();
      return true;
    }
    this.#onGone("the sandbox ended by itself");
    return false;
  }

  /** It has ended: views are cut, and every call fails from now on. */
  async end(): Promise<void> {
    this.#close(gone());
    await this.execs.end();
  }

  /** The service stops, and the sandbox goes on. */
  letGo(): void {
    this.execs.letGo();
    this.#close(new RuntimeGone("the service is stopping"));
  }

  #close(reason: RuntimeGone): void {
    this.#expiry?.cancel();
    if (!this.#closed.signal.aborted) this.#closed.abort(reason);
  }

  #note(line: string): void {
    this.#lines.push(`${this.#clock.now().toISOString()} custom: ${line}`);
    if (this.#lines.length > consoleLines) this.#lines.shift();
  }
}

function gone(): RuntimeGone {
  return new RuntimeGone("the sandbox has ended");
}
