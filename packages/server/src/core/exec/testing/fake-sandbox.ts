import { Unavailable } from "../../../ports/errors.ts";
import type {
  ExecExit,
  ExecInfo,
  ExecOperations,
  SandboxOperations,
} from "../../../ports/sandbox-operations.ts";
import type { SandboxRow } from "../../../ports/store.ts";
import type { RunningSandboxes } from "../running-sandboxes.ts";

type Listener = Parameters<RunningSandboxes["subscribe"]>[0];
type Exit = { execId: ExecInfo["execId"]; exit: ExecExit };

export function exitOf(change: Partial<ExecExit>): ExecExit {
  return {
    exitCode: 0,
    reason: "exited",
    startedAt: new Date(0),
    endedAt: new Date(5),
    durationMs: 5,
    outputBytes: 0,
    ...change,
  };
}

export function infoOf(execId: string, change: Partial<ExecInfo> = {}): ExecInfo {
  return {
    execId: execId as ExecInfo["execId"],
    pid: 7,
    command: "true",
    args: [],
    tty: false,
    detached: false,
    startedAt: new Date(0),
    outputBytes: 0,
    firstOffset: 0,
    ...change,
  };
}

/** What attaching to a command answers. */
export function attachedTo(execId: string): { info: ExecInfo; closed: boolean } & AsyncDisposable {
  return {
    info: infoOf(execId),
    closed: false,
    async [Symbol.asyncDispose]() {
      this.closed = true;
    },
  };
}

/** Lets what was started by promises come to rest. */
export async function settled(): Promise<void> {
  for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

/** Exits that a test pushes, for one listener. */
class PushedExits implements AsyncIterable<Exit> {
  #waiting: ((result: IteratorResult<Exit>) => void) | undefined;

  push(exit: Exit): void {
    this.#waiting?.({ done: false, value: exit });
  }

  end(): void {
    this.#waiting?.({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): AsyncIterator<Exit> {
    return {
      next: () =>
        new Promise((resolve) => {
          this.#waiting = resolve;
        }),
    };
  }
}

/** One sandbox whose commands exist only as far as a test says; writes down graces and kills. */
export class FakeSandbox implements Pick<RunningSandboxes, "subscribe"> {
  readonly id = "sb-000000000001";
  readonly exits = new PushedExits();
  readonly graces: [string, number | null][] = [];
  readonly kills: [string, string][] = [];
  infos: ExecInfo[] = [];
  /** When feeds of ends are there. */
  listening = Promise.resolve();
  /** How often the list of commands was read. */
  lists = 0;
  /** Calls to the sandbox that fail from now on. */
  failures = 0;
  failure: () => Error = () => new Unavailable("it does not answer");
  /** Feeds of ends that nobody has let go of. */
  openFeeds = 0;
  #listener: Listener | undefined;

  target: { row: SandboxRow; operations: SandboxOperations };

  constructor() {
    const execs: Pick<ExecOperations, "exits" | "list" | "setGrace" | "kill"> = {
      exits: ({ signal, onListening }) => {
        this.openFeeds += 1;
        void this.listening.then(onListening);
        const leave = () => {
          this.openFeeds -= 1;
          this.exits.end();
        };
        signal.addEventListener("abort", leave, { once: true });
        return this.exits;
      },
      list: async () => {
        this.lists += 1;
        this.#fail();
        return this.infos;
      },
      setGrace: async (execId, graceMs) => {
        this.#fail();
        this.graces.push([execId, graceMs]);
      },
      kill: async (execId, { reason }) => {
        this.kills.push([execId, reason]);
        return infoOf(execId, { exit: exitOf({ exitCode: 137, reason }) });
      },
    };
    this.target = {
      row: { id: this.id, provider: "fake" } as SandboxRow,
      operations: { execs } as SandboxOperations,
    };
  }

  #fail(): void {
    if (this.failures === 0) return;
    this.failures -= 1;
    throw this.failure();
  }

  subscribe(listener: Listener): () => void {
    this.#listener = listener;
    return () => {
      this.#listener = undefined;
    };
  }

  started(how: "spawned" | "adopted"): void {
    this.#listener?.started(this.target.row, this.target.operations, how);
  }

  /** The provider's connection to it is another one. */
  replaced(): void {
    this.target = { ...this.target, operations: { ...this.target.operations } };
    this.started("adopted");
  }

  async ending(): Promise<void> {
    await this.#listener?.ending?.(this.target.row.id);
  }

  stopped(how: "destroyed" | "ended" = "ended"): void {
    this.#listener?.stopped(this.target.row.id, how);
  }
}
