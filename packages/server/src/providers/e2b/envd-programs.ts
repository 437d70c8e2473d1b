import type { Taker } from "../../platform/fair-turns.ts";
import { BadRequest, type CallOptions, ProviderError } from "../../ports/index.ts";
import type { E2bCalls } from "./e2b-calls.ts";
import { isUnknownUser } from "./failures.ts";
import type { PackageSandbox } from "./package.ts";
import { serviceTurns } from "./service-turns.ts";

/** The RPC client of the package's commands. Those themselves take no program without a shell and lose bytes that are no text. */
type ProcessRpc = PackageSandbox["commands"]["rpc"];

/** One event of a program: it starts with `start` and ends with `end`. */
export type ProgramEvent =
  | { type: "start"; pid: number }
  | { type: "output"; stream: "stdout" | "stderr"; data: Uint8Array }
  | { type: "end"; exitCode: number; exited: boolean; status: string };

export interface ProgramRequest {
  argv: readonly string[];
  env: Readonly<Record<string, string>>;
  workdir?: string;
  user?: string;
  tag?: string;
  stdin: boolean;
  tty?: { cols: number; rows: number };
  /** Kept by envd, whoever is connected: then it kills the program; 0: never. */
  timeoutMs: number;
  signal: AbortSignal;
}

const keepAlive = { "Keepalive-Ping-Interval": "30" };
const sigkill = 9;
/** What a helper may print, unless it is asked for more: some numbers. What is made of it is made in one go. */
const usualOutputAtMost = 65_536;

/** Programs in one sandbox, over process.Process of envd. Errors are the RPC client's own. */
export class EnvdPrograms {
  readonly #rpc: ProcessRpc;
  readonly #calls: E2bCalls;
  readonly #taker: Taker;

  /** @param options.taker in whose turns streams are read. */
  constructor({ sandbox, calls, taker }: { sandbox: PackageSandbox; calls: E2bCalls; taker: Taker }) {
    // biome-ignore lint/complexity/useLiteralKeys: it is protected, and this is how TypeScript lets one in.
    this.#rpc = sandbox.commands["rpc"];
    this.#calls = calls;
    this.#taker = taker;
  }

  async *start(request: ProgramRequest): AsyncGenerator<ProgramEvent> {
    const [cmd = "", ...args] = request.argv;
    const { workdir, tag, tty } = request;
    yield* eventsOf(
      this.#rpc.start(
        {
          process: {
            cmd,
            args,
            envs: { ...request.env },
            ...(workdir === undefined ? {} : { cwd: workdir }),
          },
          stdin: request.stdin,
          ...(tag === undefined ? {} : { tag }),
          ...(tty === undefined ? {} : { pty: { size: { cols: tty.cols, rows: tty.rows } } }),
        },
        {
          headers: { ...keepAlive, ...asUser(request.user) },
          signal: request.signal,
          timeoutMs: request.timeoutMs,
        },
      ),
      this.#taker,
    );
  }

  /** What a program that runs writes from now on. */
  async *connect(tag: string, signal: AbortSignal): AsyncGenerator<ProgramEvent> {
    const process = tagged(tag);
    yield* eventsOf(
      this.#rpc.connect({ process }, { headers: keepAlive, signal, timeoutMs: 0 }),
      this.#taker,
    );
  }

  async sendInput(tag: string, data: Uint8Array, options: CallOptions & { tty: boolean }): Promise<void> {
    const value = new Uint8Array(data);
    const input = options.tty ? { case: "pty" as const, value } : { case: "stdin" as const, value };
    await this.#rpc.sendInput({ process: tagged(tag), input: { input } }, { signal: options.signal });
  }

  async closeInput(tag: string, options: CallOptions): Promise<void> {
    await this.#rpc.closeStdin({ process: tagged(tag) }, { signal: options.signal });
  }

  async resize(tag: string, size: { cols: number; rows: number }, options: CallOptions): Promise<void> {
    const { cols, rows } = size;
    await this.#rpc.update(
      { process: tagged(tag), pty: { size: { cols, rows } } },
      { signal: options.signal },
    );
  }

  /** The first process alone. */
  async killFirst(tag: string, options: CallOptions): Promise<void> {
    await this.#rpc.sendSignal({ process: tagged(tag), signal: sigkill }, { signal: options.signal });
  }

  /**
   * Runs a short script of ours with `args` as its positional parameters.
   * @param options.outputAtMost bytes that it may print. @param options.user who runs it: root, unless it is named; null: the template's user.
   * @throws as every call of the service does; ProviderError when it prints more than is believable.
   */
  async runHelper(
    what: string,
    script: string,
    args: readonly string[],
    options: CallOptions & {
      user?: string | null;
      workdir?: string;
      env?: Record<string, string>;
      outputAtMost?: number;
    },
  ): Promise<{ exitCode: number; stdout: Buffer; stderr: string }> {
    const known = async (error: unknown) =>
      options.user && isUnknownUser(error)
        ? new BadRequest(`user "${options.user}" is not known in this sandbox`)
        : undefined;
    return await this.#calls.run(what, { signal: options.signal, known }, async (signal) => {
      const stop = new AbortController();
      const { outputAtMost = usualOutputAtMost } = options;
      const request = {
        argv: ["/bin/sh", "-c", script, "sh", ...args],
        env: options.env ?? {},
        ...(options.user === null ? {} : { user: options.user ?? "root" }),
        workdir: options.workdir ?? "/",
        stdin: false,
        timeoutMs: 60_000,
        signal: AbortSignal.any([signal, stop.signal]),
      };
      const parts = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[] };
      let bytes = 0;
      try {
        for await (const event of this.start(request)) {
          if (event.type === "end")
            return {
              exitCode: event.exitCode,
              stdout: Buffer.concat(parts.stdout),
              stderr: Buffer.concat(parts.stderr).toString(),
            };
          if (event.type !== "output") continue;
          bytes += event.data.length;
          if (bytes > outputAtMost)
            throw new ProviderError(`to ${what} a helper printed more than ${outputAtMost} bytes`);
          parts[event.stream].push(event.data);
        }
      } finally {
        stop.abort();
      }
      throw new ProviderError(`e2b broke off what was to ${what}`);
    });
  }
}

type WireEvents = ReturnType<ProcessRpc["start"]> | ReturnType<ProcessRpc["connect"]>;

async function* eventsOf(messages: WireEvents, taker: Taker): AsyncGenerator<ProgramEvent> {
  for await (const { event } of messages) {
    const turn = serviceTurns.claim(taker);
    if (turn !== undefined) await turn;
    const inner = event?.event;
    switch (inner?.case) {
      case "start":
        yield { type: "start", pid: inner.value.pid };
        break;
      case "data": {
        const { output } = inner.value;
        if (output.case !== undefined)
          yield {
            type: "output",
            stream: output.case === "stderr" ? "stderr" : "stdout",
            data: output.value,
          };
        break;
      }
      case "end":
        yield {
          type: "end",
          exitCode: inner.value.exitCode,
          exited: inner.value.exited,
          status: inner.value.status,
        };
        return;
      // Keep-alives, and what a newer envd may say.
      default:
        break;
    }
  }
}

function tagged(tag: string): { selector: { case: "tag"; value: string } } {
  return { selector: { case: "tag", value: tag } };
}

/** Without a name envd takes the template's user. */
function asUser(user: string | undefined): Record<string, string> {
  return user === undefined ? {} : { Authorization: `Basic ${Buffer.from(`${user}:`).toString("base64")}` };
}
