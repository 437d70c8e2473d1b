import type { Duplex } from "node:stream";
import { messageOf } from "../../platform/message-of.ts";
import type { Clock, Timer } from "../../ports/clock.ts";
import { BadRequest, RuntimeGone } from "../../ports/errors.ts";
import { refuseOwnLimits } from "../../ports/own-limits.ts";
import type { RuntimeSpec } from "../../ports/runtime-provider.ts";
import type {
  CallOptions,
  ExecSpec,
  FileOperations,
  RuntimeStats,
  SandboxOperations,
} from "../../ports/sandbox-operations.ts";
import {
  type ExecRunner,
  type Journal,
  JournaledExecs,
  type ProgramEnd,
  type ProgramStreams,
  type RunningProgram,
} from "../exec-journal/index.ts";
import type { MockBehaviour } from "./behaviour.ts";
import { MemoryFiles } from "./memory-files.ts";
import { pause } from "./pause.ts";
import { findUser, SandboxFs } from "./sandbox-fs.ts";
import { directProgram, scriptOf } from "./script.ts";
import { type FileSystemCall, streamPaths } from "./shell-messages.ts";
import type { ShellPool } from "./shell-pool.ts";

const mebibyte = 1_048_576;
const fileSystemMebibytes = 128;
const root = { name: "root", uid: 0, gid: 0 };
const defaultWorkdir = "/workspace";
const outputChunk = Buffer.alloc(65_536, "0123456789abcde\n");
/** Those that end a simulated command; the others it does not notice. */
const endingSignals: Readonly<Record<number, string>> = {
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
const builtins = new Set(
  ". : [ alias bg break cd command continue declare echo eval exec exit export false fg getopts hash jobs kill let local mapfile popd printf pushd pwd read readonly return set shift source test times trap true type typeset ulimit umask unalias unset wait".split(
    " ",
  ),
);

/** One for all: to take the stack of each costs more than what is left of the end of a sandbox in which nothing ran. */
const hasEnded = new RuntimeGone("the simulated sandbox has ended");

/** One simulated sandbox. Its file system is made at the first use, so that an unused sandbox costs next to nothing. */
export class MockSandbox implements SandboxOperations, ExecRunner {
  readonly execs: JournaledExecs;
  readonly files: FileOperations;
  readonly #spec: RuntimeSpec;
  readonly #behaviour: MockBehaviour;
  readonly #pool: ShellPool;
  readonly #clock: Clock;
  readonly #onExpired: () => void;
  readonly #end = new AbortController();
  #fs: SandboxFs | undefined;
  #expiry: Timer | undefined;
  #lastPid = 1;

  constructor(options: {
    spec: RuntimeSpec;
    behaviour: MockBehaviour;
    pool: ShellPool;
    clock: Clock;
    onExpired: () => void;
  }) {
    this.#spec = options.spec;
    this.#behaviour = options.behaviour;
    this.#pool = options.pool;
    this.#clock = options.clock;
    this.#onExpired = options.onExpired;
    this.execs = new JournaledExecs({
      runner: this,
      clock: options.clock,
      what: "simulated sandbox",
      inputHoldsBytes: Number.POSITIVE_INFINITY,
    });
    this.files = new MemoryFiles({
      fs: () => this.#fileSystem(),
      ended: this.#end.signal,
      defaultOwner: findUser(options.spec.user ?? "root") ?? root,
    });
    this.#arm(options.spec.expiresInMs);
  }

  async setExpiry(expiresInMs: number | null, _options: CallOptions): Promise<void> {
    this.#assertAlive();
    this.#arm(expiresInMs);
  }

  async stats(_options: CallOptions): Promise<RuntimeStats> {
    this.#assertAlive();
    const diskBytes = await this.#fileSystem().usedBytes();
    return {
      // The file system is all the memory a simulated sandbox has, and a command counts as busy for as long as it runs.
      cpuUsageMs: Math.ceil(this.execs.runMs()),
      memoryBytes: diskBytes,
      memoryLimitBytes: this.#spec.memoryMb * mebibyte,
      pids: 1 + this.execs.runningCount,
      diskBytes,
      diskLimitBytes: this.#fileSystemBytes(),
    };
  }

  async dialPort(port: number, _options: CallOptions): Promise<Duplex> {
    throw new BadRequest(`the mock provider simulates no network; port ${port} cannot be reached`);
  }

  /** Stops every command and frees the file system. Idempotent. */
  async end(): Promise<void> {
    this.#expiry?.cancel();
    if (!this.#end.signal.aborted) this.#end.abort(hasEnded);
    await this.execs.end();
    this.#fs = undefined;
  }

  async start(spec: ExecSpec, program: ProgramStreams, options: CallOptions): Promise<RunningProgram> {
    await this.#prepare(spec, options);
    this.#lastPid += 1;
    const stop = new AbortController();
    let ending: ProgramEnd | undefined;
    const signal = AbortSignal.any([program.signal, stop.signal]);
    const ended = this.#run(spec, { ...program, signal }).then(
      (end) => ending ?? end,
      (error: unknown) => ({ exitCode: 126, startError: messageOf(error) }),
    );
    return {
      pid: this.#lastPid,
      ended,
      signal: async (number) => {
        const name = endingSignals[number];
        if (name === undefined || ending !== undefined) return;
        ending = { exitCode: 128 + number, signal: name };
        stop.abort();
      },
    };
  }

  async #prepare(spec: ExecSpec, options: CallOptions): Promise<void> {
    if (spec.tty !== undefined)
      throw new BadRequest('provider mock has no terminals (capability "pty"); leave tty, cols and rows out');
    refuseOwnLimits(spec.limits);
    if (spec.limits !== undefined)
      throw new BadRequest(
        'the mock provider holds no command to limits (capabilities "exec_usage", "exec_limits"); leave limits out',
      );
    if (this.#behaviour.execDelayMs > 0)
      await pause(this.#clock, this.#behaviour.execDelayMs, options.signal);
    if (this.#behaviour.execError !== undefined) throw this.#behaviour.execError;
    const user = spec.user ?? this.#spec.user;
    if (user !== undefined && findUser(user) === undefined)
      throw new BadRequest(`user "${user}" is not known in this sandbox; it has root, user and nobody`);
    const workdir = this.#workdir(spec);
    const found = await this.#fileSystem()
      .memory.stat(workdir)
      .catch(() => undefined);
    if (found === undefined)
      throw new BadRequest(`working directory "${workdir}" does not exist in this sandbox`);
    if (!found.isDirectory) throw new BadRequest(`working directory "${workdir}" is not a directory`);
  }

  async #run(spec: ExecSpec, program: ProgramStreams): Promise<ProgramEnd> {
    if (this.#behaviour.outputBytes !== undefined)
      return await this.#produce(this.#behaviour.outputBytes, program.output, program.signal);
    const missing = await this.#startError(spec);
    if (missing !== undefined) {
      await program.output.append("stderr", Buffer.from(`${missing}\n`));
      return { exitCode: 127, startError: missing };
    }
    const script = scriptOf(spec.argv);
    if (program.signal.aborted) return { exitCode: 137 };
    const fs = this.#fileSystem();
    const user = findUser(spec.user ?? this.#spec.user ?? "root") ?? root;
    const shell = this.#pool.start({
      script,
      stdin: spec.stdin,
      user,
      cwd: this.#workdir(spec),
      env: {
        PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        HOME: user.uid === 0 ? "/root" : `/home/${user.name}`,
        USER: user.name,
        HOSTNAME: this.#spec.sandboxId,
        ...this.#spec.env,
        ...spec.env,
      },
      files: (op, args) => this.#call(fs, op, args, program),
    });
    const abort = () => shell.abort();
    program.signal.addEventListener("abort", abort, { once: true });
    if (program.signal.aborted) abort();
    const result = await shell.result;
    program.signal.removeEventListener("abort", abort);
    switch (result.outcome) {
      case "done":
        await program.output.append("stdout", Buffer.from(result.stdout, "utf8"));
        await program.output.append("stderr", Buffer.from(result.stderr, "utf8"));
        return { exitCode: result.exitCode };
      case "aborted":
        return { exitCode: 137 };
      case "cut":
        return { exitCode: 137, lost: true };
      default:
        return result satisfies never;
    }
  }

  /** Output is what a script writes to its stream paths; all else goes to the file system. */
  async #call(fs: SandboxFs, op: FileSystemCall, args: unknown[], program: ProgramStreams): Promise<unknown> {
    switch (args[0]) {
      case streamPaths.stdout:
      case streamPaths.bytes:
      case streamPaths.stderr: {
        if (op !== "writeFile" && op !== "appendFile") throw new Error(`EINVAL: invalid argument, ${op}`);
        const stream = args[0] === streamPaths.stderr ? "stderr" : "stdout";
        const encoding = args[0] === streamPaths.bytes ? "latin1" : args[2];
        await this.#write(stream, bytesOf(args[1], encoding), program);
        return undefined;
      }
      case streamPaths.stdin:
      case streamPaths.line: {
        const reading = args[0] === streamPaths.line ? program.input.line() : program.input.rest();
        const data = await unlessAborted(reading, program.signal);
        if (op === "readFileBuffer") return new Uint8Array(data);
        return data.toString(op === "readFileBytes" ? "latin1" : encodingOf(args[1]));
      }
      default:
        return await fs.call(op, args);
    }
  }

  /** In pieces, so that a reader that stops stops the command before all of it is kept. */
  async #write(
    stream: "stdout" | "stderr",
    data: Buffer,
    program: { output: Journal; signal: AbortSignal },
  ): Promise<void> {
    for (let at = 0; at < data.length; at += outputChunk.length) {
      const part = data.subarray(at, at + outputChunk.length);
      // A copy, so that a kept piece does not keep all it was cut from.
      const piece = part.length === data.length ? part : Buffer.from(part);
      await unlessAborted(program.output.append(stream, piece), program.signal);
    }
  }

  async #produce(bytes: number, output: Journal, signal: AbortSignal): Promise<ProgramEnd> {
    const rate = this.#behaviour.outputRate;
    const chunkBytes =
      rate === undefined ? outputChunk.length : Math.min(outputChunk.length, Math.ceil(rate / 20));
    for (let left = bytes; left > 0 && !signal.aborted; left -= chunkBytes) {
      const chunk = outputChunk.subarray(0, Math.min(left, chunkBytes));
      await unlessAborted(output.append("stdout", chunk), signal).catch(() => undefined);
      const pauseMs = rate === undefined ? 0 : (chunk.length / rate) * 1_000;
      if (!signal.aborted) await pause(this.#clock, pauseMs, signal).catch(() => undefined);
    }
    return { exitCode: 0 };
  }

  async #startError(spec: ExecSpec): Promise<string | undefined> {
    const program = directProgram(spec.argv);
    if (program === undefined) return undefined;
    const fs = this.#fileSystem().memory;
    if (!program.includes("/") && builtins.has(program)) return undefined;
    const found = program.includes("/") ? await fs.exists(program) : await fs.exists(`/bin/${program}`);
    return found && program !== "" ? undefined : `exec "${program}": no such file or directory`;
  }

  #workdir(spec: ExecSpec): string {
    return spec.workdir ?? this.#spec.workdir ?? defaultWorkdir;
  }

  #fileSystemBytes(): number {
    return Math.min(this.#spec.memoryMb, fileSystemMebibytes) * mebibyte;
  }

  #fileSystem(): SandboxFs {
    this.#assertAlive();
    this.#fs ??= new SandboxFs({
      maxBytes: this.#fileSystemBytes(),
      workdir: this.#spec.workdir ?? defaultWorkdir,
      owner: findUser(this.#spec.user ?? "root") ?? root,
    });
    return this.#fs;
  }

  #arm(expiresInMs: number | null): void {
    this.#expiry?.cancel();
    this.#expiry = expiresInMs === null ? undefined : this.#clock.setTimer(expiresInMs, this.#onExpired);
  }

  #assertAlive(): void {
    if (this.#end.signal.aborted) throw new RuntimeGone("the simulated sandbox has ended");
  }
}

async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const aborted = Promise.withResolvers<never>();
  const abort = () => aborted.reject(new Error("EINTR: the command was stopped"));
  if (signal.aborted) abort();
  signal.addEventListener("abort", abort, { once: true });
  try {
    return await Promise.race([work, aborted.promise]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

/** The bytes a shell writes: text, or a text that stands for bytes one by one. */
function bytesOf(content: unknown, options: unknown): Buffer {
  if (content instanceof Uint8Array) return Buffer.from(content);
  return Buffer.from(String(content), encodingOf(options));
}

function encodingOf(options: unknown): "latin1" | "utf8" {
  const encoding =
    typeof options === "object" && options !== null && "encoding" in options ? options.encoding : options;
  return encoding === "binary" || encoding === "latin1" ? "latin1" : "utf8";
}
