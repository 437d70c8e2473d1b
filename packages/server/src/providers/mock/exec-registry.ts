import type { ExitReason } from "@alcove/wire";
import type { Clock, Timer } from "../../ports/clock.ts";
import { BadRequest, Conflict, NotFound, ResourceLimit, RuntimeGone } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import { refuseOwnLimits } from "../../ports/own-limits.ts";
import type {
  CallOptions,
  ExecEvent,
  ExecExit,
  ExecInfo,
  ExecOperations,
  ExecSpec,
  ExecView,
  KillOptions,
  WindowSize,
} from "../../ports/sandbox-operations.ts";
import { BoundedStream } from "./bounded-stream.ts";
import { Exec, type ExecRunner } from "./exec.ts";

const keptRecords = 1_000;
const journalsAtMost = 16 * 1_048_576;
const runningAtMost = 256;
const maxSignal = 64;
const signalNames: Readonly<Record<number, string>> = {
  1: "SIGHUP",
  2: "SIGINT",
  3: "SIGQUIT",
  6: "SIGABRT",
  9: "SIGKILL",
  10: "SIGUSR1",
  12: "SIGUSR2",
  13: "SIGPIPE",
  14: "SIGALRM",
  15: "SIGTERM",
};

/** The commands of one simulated sandbox: running ones and the records of the last thousand that ended. */
export class ExecRegistry implements ExecOperations {
  readonly #run: ExecRunner;
  readonly #clock: Clock;
  readonly #execs = new Map<ExecId, Exec>();
  readonly #exitStreams = new Set<BoundedStream<{ execId: ExecId; exit: ExecExit }>>();
  readonly #graces = new Map<ExecId, Timer>();
  #lastPid = 1;
  #endedMs = 0;
  #gone = false;

  constructor(options: { run: ExecRunner; clock: Clock }) {
    this.#run = options.run;
    this.#clock = options.clock;
  }

  get runningCount(): number {
    let count = 0;
    for (const exec of this.#execs.values()) if (exec.exit === undefined) count += 1;
    return count;
  }

  /** Milliseconds that commands ran, those still running included. */
  runMs(): number {
    let total = this.#endedMs;
    for (const exec of this.#execs.values()) if (exec.exit === undefined) total += exec.elapsedMs();
    return total;
  }

  async start(spec: ExecSpec, options: CallOptions): Promise<ExecView> {
    const exec = await this.#start(spec, options);
    const named = spec.input === undefined ? {} : { input: spec.input };
    return this.#view(exec, { from: 0, follow: true, lossless: true, ...named });
  }

  async startDetached(spec: ExecSpec, options: CallOptions): Promise<{ pid: number }> {
    return { pid: (await this.#start(spec, options)).pid };
  }

  async #start(spec: ExecSpec, options: CallOptions): Promise<Exec> {
    this.#assertAlive();
    options.signal.throwIfAborted();
    if (spec.tty !== undefined)
      throw new BadRequest("the mock provider simulates no terminal; leave tty, cols and rows out");
    refuseOwnLimits(spec.limits);
    if (spec.limits !== undefined)
      throw new BadRequest("the mock provider holds no command to limits; leave limits out");
    if (this.#execs.has(spec.execId))
      throw new Conflict(`exec "${spec.execId}" exists already in this sandbox`);
    if (this.runningCount >= runningAtMost)
      throw new ResourceLimit(`a mock sandbox runs at most ${runningAtMost} commands at once`);
    this.#lastPid += 1;
    const exec = new Exec({ spec, pid: this.#lastPid, clock: this.#clock });
    this.#execs.set(spec.execId, exec);
    try {
      await this.#run.prepare(spec, options);
      this.#assertAlive();
    } catch (error) {
      this.#execs.delete(spec.execId);
      throw error;
    }
    this.#forgetOldest();
    exec.run(this.#run);
    void exec.ended.then((exit) => this.#onEnded(exec, exit));
    return exec;
  }

  async attach(
    execId: ExecId,
    options: CallOptions & { from: number; follow: boolean; lossless: boolean; input?: string },
  ): Promise<ExecView & { info: ExecInfo }> {
    const exec = this.#find(execId);
    if (options.follow) await this.setGrace(execId, null, options);
    return Object.assign(this.#view(exec, options), { info: exec.info() });
  }

  async get(execId: ExecId): Promise<ExecInfo> {
    return this.#find(execId).info();
  }

  async list(): Promise<ExecInfo[]> {
    this.#assertAlive();
    return [...this.#execs.values()].map((exec) => exec.info());
  }

  async writeStdin(
    execId: ExecId,
    data: Uint8Array,
    options: CallOptions & { close: boolean; input?: string; offset?: number },
  ): Promise<void> {
    const exec = this.#find(execId);
    if (exec.exit !== undefined) throw new Conflict(`exec "${execId}" has ended`);
    const { input, offset = 0 } = options;
    const known = input === undefined ? 0 : exec.inputs.taken(input) - offset;
    if (known < 0) throw new Conflict(`input ${input} goes on before byte ${offset}`);
    const named = input === undefined ? undefined : exec.inputs.join(input);
    const missing = data.subarray(Math.min(known, data.length));
    if (!exec.input.isOpen && (missing.length > 0 || data.length === 0))
      throw new Conflict(`the standard input of exec "${execId}" is closed`);
    exec.input.write(missing);
    named?.took(missing.length);
    if (options.close) exec.input.close();
  }

  async inputTaken(execId: ExecId, input: string): Promise<number> {
    return this.#find(execId).inputs.taken(input);
  }

  async resize(execId: ExecId, _size: WindowSize): Promise<void> {
    this.#find(execId);
  }

  async signal(execId: ExecId, signal: number): Promise<void> {
    const exec = this.#find(execId);
    if (exec.exit !== undefined) throw new Conflict(`exec "${execId}" has ended`);
    if (!Number.isInteger(signal) || signal < 1 || signal > maxSignal)
      throw new BadRequest(`signal ${signal} is not one of 1 to ${maxSignal}`);
    const name = signalNames[signal];
    if (name !== undefined) exec.stop({ reason: "signaled", exitCode: 128 + signal, signal: name });
  }

  async kill(execId: ExecId, options: CallOptions & KillOptions): Promise<ExecInfo> {
    const exec = this.#find(execId);
    const { reason, inputLostBytes: lost } = options;
    const inputLost = lost === undefined ? {} : { inputLostBytes: lost };
    exec.stop({ reason, exitCode: 137, signal: "SIGKILL", ...inputLost });
    await exec.ended;
    return exec.info();
  }

  exits(
    options: CallOptions & { onListening?: () => void },
  ): AsyncIterable<{ execId: ExecId; exit: ExecExit }> {
    const stream = new BoundedStream<{ execId: ExecId; exit: ExecExit }>({
      limit: keptRecords,
      signal: options.signal,
    });
    if (this.#gone) stream.end();
    else {
      this.#exitStreams.add(stream);
      stream.onEnd(() => this.#exitStreams.delete(stream));
      queueMicrotask(() => options.onListening?.());
    }
    return stream;
  }

  async setGrace(execId: ExecId, graceMs: number | null, _options: CallOptions): Promise<void> {
    const exec = this.#find(execId);
    this.#graces.get(execId)?.cancel();
    this.#graces.delete(execId);
    if (graceMs === null || exec.exit !== undefined) return;
    const begin = () => this.#graces.set(execId, this.#clock.setTimer(graceMs, end));
    const end = () => {
      this.#graces.delete(execId);
      if (exec.followers > 0) begin();
      else exec.stop({ reason: "cancelled", exitCode: 137, signal: "SIGKILL" });
    };
    begin();
  }

  /** The sandbox has ended: views are cut without an exit, every command is stopped. */
  async end(): Promise<void> {
    if (this.#gone) return;
    this.#gone = true;
    for (const timer of this.#graces.values()) timer.cancel();
    this.#graces.clear();
    for (const stream of this.#exitStreams) stream.end();
    const running = [...this.#execs.values()].filter((exec) => exec.exit === undefined);
    for (const exec of running) {
      exec.cut();
      exec.stop({ reason: "lost", exitCode: 137, signal: "SIGKILL" });
    }
    await Promise.all(running.map((exec) => exec.ended));
    this.#execs.clear();
  }

  #onEnded(exec: Exec, exit: ExecExit): void {
    this.#graces.get(exec.execId)?.cancel();
    this.#graces.delete(exec.execId);
    this.#endedMs += exit.durationMs;
    this.#shrink();
    if (this.#gone) return;
    for (const stream of this.#exitStreams) stream.push({ execId: exec.execId, exit });
  }

  #view(exec: Exec, options: { from: number; follow: boolean; lossless: boolean; input?: string }): ExecView {
    const input = options.input === undefined ? undefined : exec.inputs.join(options.input);
    const reader = exec.journal.reader({ from: options.from, lossless: options.lossless && options.follow });
    let open = true;
    if (options.follow) exec.followers += 1;
    const close = () => {
      if (open && options.follow) exec.followers -= 1;
      open = false;
      reader[Symbol.dispose]();
    };
    async function* events(): AsyncGenerator<ExecEvent> {
      try {
        for (;;) {
          const chunk = options.follow ? await reader.next() : reader.take();
          if (chunk === undefined) break;
          yield { type: "output", ...chunk };
        }
        if (exec.exit !== undefined && !exec.isCut) yield { type: "exit", exit: exec.exit };
      } finally {
        close();
      }
    }
    return {
      execId: exec.execId,
      pid: exec.pid,
      events: events(),
      writeStdin: async (data) => {
        if (input?.took(data.length) === false) return;
        if (exec.exit === undefined) exec.input.write(data);
      },
      ...(input === undefined ? {} : { watchInput: (listener) => input.watch(listener) }),
      closeStdin: async () => exec.input.close(),
      [Symbol.asyncDispose]: async () => close(),
    };
  }

  /** Output of ended commands goes, oldest first, while all of it together is too much. */
  #shrink(): void {
    let kept = 0;
    for (const exec of this.#execs.values()) kept += exec.journal.keptBytes;
    for (const exec of this.#execs.values()) {
      if (kept <= journalsAtMost) return;
      if (exec.exit === undefined) continue;
      kept -= exec.journal.keptBytes;
      exec.journal.forget();
    }
  }

  #find(execId: ExecId): Exec {
    this.#assertAlive();
    const exec = this.#execs.get(execId);
    if (exec === undefined)
      throw new NotFound(`exec ${execId} is unknown; the last ${keptRecords} ended ones are kept`, {
        what: "exec",
      });
    return exec;
  }

  #assertAlive(): void {
    if (this.#gone) throw new RuntimeGone("the simulated sandbox has ended");
  }

  #forgetOldest(): void {
    let ended = this.#execs.size - this.runningCount;
    for (const [id, exec] of this.#execs) {
      if (ended <= keptRecords) return;
      if (exec.exit === undefined) continue;
      this.#execs.delete(id);
      ended -= 1;
    }
  }
}

export type StopCause = { reason: ExitReason; exitCode: number; signal?: string; inputLostBytes?: number };
