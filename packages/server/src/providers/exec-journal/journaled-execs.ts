import { abortable } from "../../platform/abortable.ts";
import type { Clock, Timer } from "../../ports/clock.ts";
import { BadRequest, Conflict, NotFound, ResourceLimit, RuntimeGone } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
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
import { JournaledExec } from "./journaled-exec.ts";
import type { ExecRunner } from "./runner.ts";

const keptRecords = 1_000;
const journalsAtMost = 16 * 1_048_576;
const runningAtMost = 256;
const maxSignal = 64;
const defaultRingBytes = 1_048_576;

/**
 * The commands of one sandbox whose backend has no agent of ours: running ones and the records of the last thousand that
 * ended. Journals, offsets, deadlines and graces are kept here, in this process; `runner` does what is left. They end with
 * the process, so a provider of this kind does not announce `adopt`.
 */
export class JournaledExecs implements ExecOperations {
  readonly #runner: ExecRunner;
  readonly #what: string;
  readonly #ringBytes: number;
  readonly #inputHoldsBytes: number;
  readonly #clock: Clock;
  readonly #onEvent: (line: string) => void;
  readonly #execs = new Map<ExecId, JournaledExec>();
  readonly #starting = new Set<ExecId>();
  readonly #exitStreams = new Set<BoundedStream<{ execId: ExecId; exit: ExecExit }>>();
  readonly #graces = new Map<ExecId, Timer>();
  #endedMs = 0;
  #gone = false;

  /**
   * @param options.what names the sandbox in messages: "simulated sandbox".
   * @param options.inputHoldsBytes of standard input may wait without holding its writer back.
   * @param options.onEvent is told in a line what becomes of each command.
   */
  constructor(options: {
    runner: ExecRunner;
    clock: Clock;
    what: string;
    inputHoldsBytes: number;
    ringBytes?: number | undefined;
    onEvent?: (line: string) => void;
  }) {
    this.#runner = options.runner;
    this.#clock = options.clock;
    this.#what = options.what;
    this.#ringBytes = options.ringBytes ?? defaultRingBytes;
    this.#inputHoldsBytes = options.inputHoldsBytes;
    this.#onEvent = options.onEvent ?? (() => undefined);
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

  async #start(spec: ExecSpec, options: CallOptions): Promise<JournaledExec> {
    this.#assertAlive();
    options.signal.throwIfAborted();
    const { execId } = spec;
    if (this.#execs.has(execId) || this.#starting.has(execId))
      throw new Conflict(`exec "${execId}" exists already in this sandbox`);
    if (this.runningCount + this.#starting.size >= runningAtMost)
      throw new ResourceLimit(`a ${this.#what} runs at most ${runningAtMost} commands at once`);
    const exec = new JournaledExec({
      spec,
      clock: this.#clock,
      ringBytes: this.#ringBytes,
      inputHoldsBytes: this.#inputHoldsBytes,
    });
    this.#starting.add(execId);
    try {
      await exec.start(this.#runner, options);
    } finally {
      this.#starting.delete(execId);
    }
    this.#execs.set(execId, exec);
    this.#forgetOldest();
    this.#onEvent(`${execId} started, pid ${exec.pid}`);
    void exec.ended.then((exit) => this.#onEnded(exec, exit));
    if (this.#gone) {
      await stopForGood(exec);
      this.#assertAlive();
    }
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
    const written = exec.input.write(missing);
    named?.took(missing.length);
    if (options.close) exec.input.close();
    await abortable(written, options.signal);
  }

  async inputTaken(execId: ExecId, input: string): Promise<number> {
    return this.#find(execId).inputs.taken(input);
  }

  async resize(execId: ExecId, size: WindowSize, options: CallOptions): Promise<void> {
    const exec = this.#find(execId);
    if (exec.hasTerminal && exec.exit === undefined) await exec.program.resize?.(size, options);
  }

  async signal(execId: ExecId, signal: number, options: CallOptions): Promise<void> {
    const exec = this.#find(execId);
    if (exec.exit !== undefined) throw new Conflict(`exec "${execId}" has ended`);
    if (!Number.isInteger(signal) || signal < 1 || signal > maxSignal)
      throw new BadRequest(`signal ${signal} is not one of 1 to ${maxSignal}`);
    await exec.program.signal(signal, options);
  }

  async kill(execId: ExecId, options: CallOptions & KillOptions): Promise<ExecInfo> {
    const exec = this.#find(execId);
    const { reason, inputLostBytes: lost } = options;
    const inputLost = lost === undefined ? {} : { inputLostBytes: lost };
    if (exec.exit === undefined) {
      exec.stop({ reason, exitCode: 137, signal: "SIGKILL", ...inputLost });
      await abortable(exec.ended, options.signal);
    } else await exec.program.sweep?.(options);
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

  /** The service lets go of the sandbox, which goes on: views are cut without an exit, and nothing is stopped. */
  letGo(): void {
    if (this.#gone) return;
    this.#close();
    for (const exec of this.#execs.values()) if (exec.exit === undefined) exec.cut();
    this.#execs.clear();
  }

  /** The sandbox has ended: views are cut without an exit, every command is stopped. */
  async end(): Promise<void> {
    if (this.#gone) return;
    this.#close();
    const running = [...this.#execs.values()].filter((exec) => exec.exit === undefined);
    await Promise.all(running.map(stopForGood));
    this.#execs.clear();
  }

  #close(): void {
    this.#gone = true;
    for (const timer of this.#graces.values()) timer.cancel();
    this.#graces.clear();
    for (const stream of this.#exitStreams) stream.end();
  }

  #onEnded(exec: JournaledExec, exit: ExecExit): void {
    this.#onEvent(`${exec.execId} ${exit.reason}, exit code ${exit.exitCode}`);
    this.#graces.get(exec.execId)?.cancel();
    this.#graces.delete(exec.execId);
    this.#endedMs += exit.durationMs;
    this.#shrink();
    if (this.#gone) return;
    for (const stream of this.#exitStreams) stream.push({ execId: exec.execId, exit });
  }

  #view(
    exec: JournaledExec,
    options: { from: number; follow: boolean; lossless: boolean; input?: string },
  ): ExecView {
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
        if (input?.isCurrent === false) return;
        // Refused, it counts as not taken; while it is waited for, as taken.
        const written = exec.exit === undefined ? exec.input.write(data) : undefined;
        input?.took(data.length);
        await written;
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

  #find(execId: ExecId): JournaledExec {
    this.#assertAlive();
    const exec = this.#execs.get(execId);
    if (exec === undefined)
      throw new NotFound(`exec ${execId} is unknown; the last ${keptRecords} ended ones are kept`, {
        what: "exec",
      });
    return exec;
  }

  #assertAlive(): void {
    if (this.#gone) throw new RuntimeGone(`the ${this.#what} has ended`);
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

async function stopForGood(exec: JournaledExec): Promise<void> {
  exec.cut();
  exec.stop({ reason: "lost", exitCode: 137, signal: "SIGKILL" });
  await exec.ended;
}
