import { randomIds } from "../../../src/platform/random-ids.ts";
import {
  BadRequest,
  type ExecEvent,
  type ExecExit,
  type ExecId,
  type ExecView,
  type SandboxOperations,
} from "../../../src/ports/index.ts";
import { type ConnectCall, ConnectFailure } from "./connect-wire.ts";

/** What the calls of process.Process carry, in their JSON form. */
interface ProcessMessage {
  process?: {
    cmd?: string;
    args?: string[];
    envs?: Record<string, string>;
    cwd?: string;
    pid?: number;
    tag?: string;
  };
  pty?: { size?: { cols?: number; rows?: number } };
  tag?: string;
  stdin?: boolean;
  input?: { stdin?: string; pty?: string };
  signal?: string;
}

interface Known {
  execId: ExecId;
  pid: number;
  tag: string | undefined;
  message: ProcessMessage;
  exited: boolean;
}

/** What Go calls the signals that end programs. */
const goSignals: Readonly<Record<string, string>> = {
  SIGHUP: "hangup",
  SIGINT: "interrupt",
  SIGQUIT: "quit",
  SIGABRT: "aborted",
  SIGKILL: "killed",
  SIGUSR1: "user defined signal 1",
  SIGSEGV: "segmentation fault",
  SIGUSR2: "user defined signal 2",
  SIGPIPE: "broken pipe",
  SIGALRM: "alarm clock",
  SIGTERM: "terminated",
};
const signalPrograms: Readonly<Record<string, string>> = { SIGNAL_SIGKILL: "KILL", SIGNAL_SIGTERM: "TERM" };
const soon = () => ({ signal: AbortSignal.timeout(10_000) });

/** process.Process of envd over a real sandbox: a program outlives the stream that started it, and has its tag for a name. */
export class EnvdProcesses {
  readonly #operations: SandboxOperations;
  readonly #known = new Map<number, Known>();

  constructor(operations: SandboxOperations) {
    this.#operations = operations;
  }

  async handle(
    method: string,
    call: ConnectCall,
    context: { user: string; defaultEnv: Record<string, string>; timeoutMs: number; closed: AbortSignal },
  ): Promise<void> {
    const message = call.message as ProcessMessage;
    const { execs } = this.#operations;
    switch (method) {
      case "Start": {
        const view = await this.#start(message, context);
        await this.#follow(view, call, context.closed, message.pty !== undefined);
        return;
      }
      case "Connect": {
        const known = await this.#find(message);
        const { outputBytes } = await execs.get(known.execId, soon());
        const options = { ...soon(), from: outputBytes, follow: true, lossless: true };
        const view = await execs.attach(known.execId, options);
        await this.#follow(view, call, context.closed, known.message.pty !== undefined);
        return;
      }
      case "List": {
        const processes = [...this.#known.values()]
          .filter(({ exited }) => !exited)
          .map(({ pid, tag, message: { process } }) => ({ config: process, pid, ...(tag && { tag }) }));
        call.answer({ processes });
        return;
      }
      case "SendInput": {
        const known = await this.#find(message);
        const data = Buffer.from(message.input?.stdin ?? message.input?.pty ?? "", "base64");
        if (known.message.stdin !== true && known.message.pty === undefined)
          throw new ConnectFailure("failed_precondition", "stdin not enabled or closed");
        await execs
          .writeStdin(known.execId, data, { signal: context.closed, close: false })
          .catch((error: unknown) => {
            throw new ConnectFailure("internal", `error writing to stdin: ${error}`);
          });
        call.answer({});
        return;
      }
      case "CloseStdin": {
        const known = await this.#find(message);
        if (known.message.pty !== undefined)
          throw new ConnectFailure("failed_precondition", "cannot close stdin for PTY process");
        await execs.writeStdin(known.execId, Buffer.alloc(0), { ...soon(), close: true });
        call.answer({});
        return;
      }
      case "SendSignal": {
        const known = await this.#find(message);
        const name = signalPrograms[message.signal ?? ""];
        if (name === undefined)
          throw new ConnectFailure("unimplemented", `invalid signal: ${message.signal}`);
        // To the one process, not to its group.
        await this.run(`kill -${name} ${known.pid}`);
        call.answer({});
        return;
      }
      case "Update": {
        const known = await this.#find(message);
        const { cols = 0, rows = 0 } = message.pty?.size ?? {};
        if (known.message.pty === undefined)
          throw new ConnectFailure("failed_precondition", "tty not assigned to process");
        await execs.resize(known.execId, { cols, rows }, soon());
        call.answer({});
        return;
      }
      default:
        throw new ConnectFailure("unimplemented", `process.Process has no ${method}`);
    }
  }

  /** Runs a script as root, as envd itself works. */
  async run(script: string): Promise<void> {
    const spec = {
      execId: randomIds.execId(),
      command: script,
      args: [],
      argv: ["/bin/sh", "-c", script],
      env: {},
      user: "root",
      stdin: false,
      timeoutMs: 10_000,
      detached: false,
    };
    await using view = await this.#operations.execs.start(spec, soon());
    for await (const event of view.events) if (event.type === "exit") return;
  }

  async #start(
    message: ProcessMessage,
    context: { user: string; defaultEnv: Record<string, string>; timeoutMs: number },
  ): Promise<ExecView> {
    const { cmd = "", args = [], envs = {}, cwd } = message.process ?? {};
    const size = message.pty?.size;
    try {
      const view = await this.#operations.execs.start(
        {
          execId: randomIds.execId(),
          command: cmd,
          args,
          argv: [cmd, ...args],
          env: { ...context.defaultEnv, ...envs },
          user: context.user,
          ...(cwd === undefined ? {} : { workdir: cwd }),
          ...(size === undefined ? {} : { tty: { cols: size.cols ?? 0, rows: size.rows ?? 0 } }),
          stdin: message.stdin === true || size !== undefined,
          timeoutMs: context.timeoutMs,
          detached: true,
        },
        soon(),
      );
      this.#known.set(view.pid, {
        execId: view.execId,
        pid: view.pid,
        tag: message.tag,
        message,
        exited: false,
      });
      return view;
    } catch (error) {
      if (error instanceof BadRequest)
        throw new ConnectFailure("invalid_argument", `cwd '${cwd}' does not exist: ${error.message}`);
      throw new ConnectFailure("unknown", `error starting process '${cmd}': ${error}`);
    }
  }

  async #follow(view: ExecView, call: ConnectCall, closed: AbortSignal, isPty: boolean): Promise<void> {
    const leave = () => void view[Symbol.asyncDispose]();
    closed.addEventListener("abort", leave, { once: true });
    try {
      await call.send({ event: { start: { pid: view.pid } } });
      for await (const event of view.events) {
        if (event.type === "exit") {
          const known = this.#known.get(view.pid);
          if (known !== undefined) known.exited = true;
        }
        await call.send({ event: wireEvent(event, isPty) });
      }
      call.end();
    } finally {
      leave();
    }
  }

  /** One that has ended is forgotten at once. */
  async #find(message: ProcessMessage): Promise<Known> {
    const { pid, tag } = message.process ?? {};
    const known = [...this.#known.values()].find(
      (each) => !each.exited && (pid === undefined ? each.tag === tag : each.pid === pid),
    );
    const info = known && (await this.#operations.execs.get(known.execId, soon()));
    if (known === undefined || info?.exit !== undefined)
      throw new ConnectFailure(
        "not_found",
        `process with ${pid === undefined ? `tag ${tag}` : `pid ${pid}`} not found`,
      );
    return known;
  }
}

function wireEvent(event: ExecEvent, isPty: boolean): object {
  if (event.type === "exit") return { end: wireEnd(event.exit) };
  return { data: { [isPty ? "pty" : event.stream]: event.data.toString("base64") } };
}

function wireEnd({ exitCode, signal }: ExecExit): object {
  if (signal === undefined) {
    const status = `exit status ${exitCode}`;
    return { exitCode, exited: true, status, ...(exitCode === 0 ? {} : { error: status }) };
  }
  const status = `signal: ${goSignals[signal] ?? signal}`;
  return { exitCode: -1, exited: false, status, error: status };
}
