import type { Taker } from "../../platform/fair-turns.ts";
import {
  BadRequest,
  type CallOptions,
  type Clock,
  RuntimeGone,
  type RuntimeStats,
  type SandboxOperations,
  type Timer,
} from "../../ports/index.ts";
import { JournaledExecs } from "../exec-journal/index.ts";
import type { E2bCalls } from "./e2b-calls.ts";
import { E2bFiles } from "./e2b-files.ts";
import { EnvdPrograms } from "./envd-programs.ts";
import { isMissingSandbox } from "./failures.ts";
import { statsScript } from "./helper-scripts.ts";
import type { Access, E2bPackage } from "./package.ts";
import { ProgramRunner } from "./program-runner.ts";

export const defaultWorkdir = "/workspace";
/** envd is asked for much more of standard input at once only when some of it was taken. */
const inputHoldsBytes = 262_144;
const consoleLines = 1_000;
/** How long after its expiry a sandbox is looked for. */
const afterExpiryMs = 250;
const lookAgainMs = 5_000;
/** A sandbox that was seen so recently is not looked for again. */
const seenFreshMs = 250;
/** A look is asked for beside a call that has failed, which waits for it. */
const lookMs = 5_000;

/** One sandbox of the hosted service: running until its end is seen (`onGone`) or made (`end`), or until it is let go of. */
export class E2bSandbox implements SandboxOperations {
  readonly execs: JournaledExecs;
  readonly files: E2bFiles;
  readonly hostedId: string;
  readonly #package: E2bPackage;
  readonly #programs: EnvdPrograms;
  readonly #calls: E2bCalls;
  readonly #clock: Clock;
  readonly #maxLifetimeMs: number;
  readonly #onGone: (reason: string) => void;
  readonly #closed = new AbortController();
  readonly #lines: string[] = [];
  readonly #user: string | undefined;
  readonly #workdir: string;
  #expiry: Timer | undefined;
  #look: Promise<boolean> | undefined;
  #seenAt = Number.NEGATIVE_INFINITY;

  constructor(options: {
    e2b: E2bPackage;
    access: Access;
    calls: E2bCalls;
    clock: Clock;
    ringBytes: number | undefined;
    maxLifetimeMs: number;
    user: string | undefined;
    workdir: string | undefined;
    /** Whose turns its streams are read in. */
    taker: Taker;
    onGone: (reason: string) => void;
  }) {
    this.#package = options.e2b;
    this.hostedId = options.access.sandboxId;
    this.#calls = options.calls;
    this.#clock = options.clock;
    this.#maxLifetimeMs = options.maxLifetimeMs;
    this.#onGone = options.onGone;
    this.#user = options.user;
    this.#workdir = options.workdir ?? defaultWorkdir;
    const sandbox = options.e2b.open(options.access);
    this.#programs = new EnvdPrograms({ sandbox, calls: options.calls, taker: options.taker });
    const common = {
      programs: this.#programs,
      calls: options.calls,
      user: options.user,
      closed: this.#closed.signal,
      confirm: () => this.confirm(),
    };
    this.execs = new JournaledExecs({
      runner: new ProgramRunner({ ...common, workdir: this.#workdir }),
      clock: options.clock,
      what: "sandbox of e2b",
      inputHoldsBytes,
      ringBytes: options.ringBytes,
      onEvent: (line) => this.#note(line),
    });
    this.files = new E2bFiles({ ...common, sandbox, clock: options.clock, taker: options.taker });
    this.#note(`sandbox ${options.access.sandboxId} of e2b is reached`);
  }

  /** Makes the directories that every sandbox has, as its user's. */
  async furnish(options: CallOptions): Promise<void> {
    for (const folder of new Set([defaultWorkdir, this.#workdir]))
      await this.files.ensureDirectory(folder, options);
  }

  async setExpiry(expiresInMs: number | null, options: CallOptions): Promise<void> {
    this.#assertOpen();
    const lifetimeMs = Math.min(expiresInMs ?? this.#maxLifetimeMs, this.#maxLifetimeMs);
    await this.#calls.run("set an expiry", { ...options, known: (error) => this.#ifGone(error) }, (signal) =>
      // The service counts whole seconds, and takes 0 for its default.
      this.#package.setTimeout(this.hostedId, Math.max(1_000, lifetimeMs), { signal }),
    );
    this.watchExpiry(Math.max(1_000, Math.ceil(lifetimeMs / 1_000) * 1_000));
  }

  /** Looks for the sandbox once its time is over. */
  watchExpiry(afterMs: number): void {
    this.#expiry?.cancel();
    if (this.#closed.signal.aborted) return;
    this.#expiry = this.#clock.setTimer(afterMs + afterExpiryMs, () => {
      this.#seenAt = Number.NEGATIVE_INFINITY;
      void this.confirm().then((there) => {
        if (there) this.watchExpiry(lookAgainMs);
      });
    });
  }

  async stats(options: CallOptions): Promise<RuntimeStats> {
    this.#assertOpen();
    const { stdout } = await this.#programs.runHelper("measure a sandbox", statsScript, [], options);
    const [cpuUsageMs = 0, memoryBytes = 0, pids = 0, memoryLimitBytes = 0] = stdout
      .toString()
      .trim()
      .split(/\s+/)
      .map(Number);
    return { cpuUsageMs, memoryBytes, pids, ...(memoryLimitBytes > 0 && { memoryLimitBytes }) };
  }

  async dialPort(port: number): Promise<never> {
    throw new BadRequest(
      `provider e2b carries no connections to ports (capability "ports"); port ${port} cannot be reached through this service`,
    );
  }

  logs(lines: number): string[] {
    return this.#lines.slice(Math.max(0, this.#lines.length - lines));
  }

  /** Whether it is still there, as far as can be told: a service that cannot be asked has not lost it. */
  async confirm(): Promise<boolean> {
    if (this.#closed.signal.aborted) return false;
    if (performance.now() - this.#seenAt < seenFreshMs) return true;
    this.#look ??= this.#ask().finally(() => {
      this.#look = undefined;
    });
    return await this.#look;
  }

  async #ask(): Promise<boolean> {
    const options = { signal: this.#closed.signal, timeoutMs: lookMs };
    let missing = false;
    const known = async (error: unknown) => {
      missing = isMissingSandbox(error);
      return undefined;
    };
    try {
      await this.#calls.run("look for a sandbox", { ...options, known }, (signal) =>
        this.#package.info(this.hostedId, { signal }),
      );
      this.#seenAt = performance.now();
    } catch {
      if (!missing) return !this.#closed.signal.aborted;
      this.#onGone("the sandbox ended by itself");
      return false;
    }
    return true;
  }

  /** It has ended: views are cut, and every call fails from now on. */
  async end(): Promise<void> {
    this.#close(new RuntimeGone("the sandbox has ended"));
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

  async #ifGone(error: unknown): Promise<Error | undefined> {
    if (!isMissingSandbox(error)) return undefined;
    this.#seenAt = Number.NEGATIVE_INFINITY;
    return (await this.confirm()) ? undefined : new RuntimeGone("the sandbox has ended");
  }

  #assertOpen(): void {
    this.#closed.signal.throwIfAborted();
  }

  #note(line: string): void {
    this.#lines.push(`${this.#clock.now().toISOString()} e2b: ${line}`);
    if (this.#lines.length > consoleLines) this.#lines.shift();
  }
}
