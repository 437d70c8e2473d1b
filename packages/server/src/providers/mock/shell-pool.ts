import { Worker } from "node:worker_threads";
import type { Logger } from "../../platform/logger.ts";
import { ResourceLimit } from "../../ports/errors.ts";
import {
  type FileSystemCall,
  type FromShell,
  runsPerWorker,
  type ShellUser,
  type ToShell,
} from "./shell-messages.ts";

/** How a script ended. `cut`: its worker had to be terminated, or died. */
export type ShellResult =
  | { outcome: "done"; exitCode: number; stdout: string; stderr: string }
  | { outcome: "aborted" }
  | { outcome: "cut"; why: string };

export interface ShellJob {
  script: string;
  /** Whether there is standard input to wait for. */
  stdin: boolean;
  user: ShellUser;
  cwd: string;
  env: Record<string, string>;
  /** Answers the script's file system calls. */
  files: (op: FileSystemCall, args: unknown[]) => Promise<unknown>;
}

interface Run {
  job: ShellJob;
  result: PromiseWithResolvers<ShellResult>;
  aborted: boolean;
  killTimer?: NodeJS.Timeout;
}

/** How long a script may go on after it was aborted before its worker is terminated. */
const abortGraceMs = 500;

/**
 * Runs scripts in at most `maxWorkers` worker threads, each script where the fewest run. A worker that does not let go
 * of an aborted script is terminated and replaced by the next script that needs one; scripts beside it there end as `cut`.
 */
export class ShellPool implements AsyncDisposable {
  readonly #maxWorkers: number;
  readonly #logger: Logger;
  readonly #workers = new Set<ShellWorker>();
  #closed = false;

  constructor(options: { maxWorkers: number; logger: Logger }) {
    this.#maxWorkers = options.maxWorkers;
    this.#logger = options.logger;
  }

  /** @throws ResourceLimit when every worker is full. */
  start(job: ShellJob): { result: Promise<ShellResult>; abort(): void } {
    const worker = this.#closed ? undefined : this.#pick();
    if (worker === undefined)
      throw new ResourceLimit(
        `the mock provider runs at most ${this.#maxWorkers * runsPerWorker} commands at once; wait for one to end or raise providers.mock.max_workers`,
      );
    return worker.start(job);
  }

  #pick(): ShellWorker | undefined {
    let best: ShellWorker | undefined;
    for (const worker of this.#workers)
      if (best === undefined || worker.runningCount < best.runningCount) best = worker;
    if ((best === undefined || best.runningCount > 0) && this.#workers.size < this.#maxWorkers) {
      const worker = new ShellWorker({
        logger: this.#logger,
        onGone: () => this.#workers.delete(worker),
      });
      this.#workers.add(worker);
      return worker;
    }
    return best !== undefined && best.runningCount < runsPerWorker ? best : undefined;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    await Promise.all([...this.#workers].map((worker) => worker.terminate("the mock provider is closed")));
  }
}

class ShellWorker {
  readonly #worker: Worker;
  readonly #aborts = new Int32Array(new SharedArrayBuffer(runsPerWorker * Int32Array.BYTES_PER_ELEMENT));
  readonly #runs = new Map<number, Run>();
  readonly #logger: Logger;
  readonly #onGone: () => void;
  #gone = false;

  constructor(options: { logger: Logger; onGone: () => void }) {
    this.#logger = options.logger;
    this.#onGone = options.onGone;
    this.#worker = new Worker(new URL("./shell-worker.ts", import.meta.url), {
      workerData: { aborts: this.#aborts.buffer },
      env: {},
      execArgv: [],
      resourceLimits: { maxOldGenerationSizeMb: 512 },
      name: "mock-shell",
    });
    this.#worker.unref();
    this.#worker.on("message", (message: FromShell) => this.#receive(message));
    this.#worker.on("error", (error: Error) => this.#end(`its worker failed: ${error.message}`));
    this.#worker.on("exit", () => this.#end("its worker ended"));
  }

  get runningCount(): number {
    return this.#runs.size;
  }

  start(job: ShellJob): { result: Promise<ShellResult>; abort(): void } {
    let slot = 0;
    while (this.#runs.has(slot)) slot += 1;
    const run: Run = { job, result: Promise.withResolvers(), aborted: false };
    this.#runs.set(slot, run);
    Atomics.store(this.#aborts, slot, 0);
    this.#post({
      type: "run",
      run: slot,
      script: job.script,
      stdin: job.stdin,
      user: job.user,
      cwd: job.cwd,
      env: job.env,
    });
    return { result: run.result.promise, abort: () => this.#abort(slot, run) };
  }

  #abort(slot: number, run: Run): void {
    if (run.aborted || this.#runs.get(slot) !== run) return;
    run.aborted = true;
    Atomics.store(this.#aborts, slot, 1);
    this.#post({ type: "abort", run: slot });
    run.killTimer = setTimeout(() => {
      this.#logger.warn(
        { event: "mock.worker_terminated", running: this.#runs.size },
        "a simulated command did not stop",
      );
      void this.terminate("another command of its worker did not stop");
    }, abortGraceMs);
    run.killTimer.unref();
  }

  async terminate(why: string): Promise<void> {
    this.#end(why);
    await this.#worker.terminate();
  }

  #end(why: string): void {
    if (this.#gone) return;
    this.#gone = true;
    this.#onGone();
    for (const [slot, run] of this.#runs) {
      this.#runs.delete(slot);
      clearTimeout(run.killTimer);
      run.result.resolve(run.aborted ? { outcome: "aborted" } : { outcome: "cut", why });
    }
  }

  #receive(message: FromShell): void {
    switch (message.type) {
      case "ready":
        return;
      case "call":
        void this.#call(message);
        return;
      case "done": {
        const run = this.#runs.get(message.run);
        if (run === undefined) return;
        this.#runs.delete(message.run);
        clearTimeout(run.killTimer);
        if (run.aborted) run.result.resolve({ outcome: "aborted" });
        else
          run.result.resolve({
            outcome: "done",
            exitCode: message.exitCode,
            stdout: message.stdout,
            stderr:
              message.failed === undefined ? message.stderr : `${message.stderr}mock: ${message.failed}\n`,
          });
        return;
      }
      default:
        message satisfies never;
    }
  }

  async #call(message: Extract<FromShell, { type: "call" }>): Promise<void> {
    const run = this.#runs.get(message.run);
    try {
      if (run === undefined || run.aborted) throw new Error("EINTR: the command was stopped");
      const value = await run.job.files(message.op, message.args);
      this.#post({ type: "answer", call: message.call, value });
    } catch (error) {
      this.#post({
        type: "answer",
        call: message.call,
        error: error instanceof Error ? error.message : String(error),
      });
    }
  }

  #post(message: ToShell): void {
    if (!this.#gone) this.#worker.postMessage(message);
  }
}
