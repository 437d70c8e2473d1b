import { type ChildProcess, type ChildProcessByStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import type { Logger } from "../../platform/logger.ts";
import { messageOf } from "../../platform/message-of.ts";
import { isMomentary } from "../../platform/momentary.ts";
import { outsideRequests } from "../../platform/request-scope.ts";
import type {
  AttachSpec,
  ClaimSpec,
  DestroySpec,
  DetachSpec,
  LaunchSpec,
  LendSpec,
  NameSpec,
  ShiftSpec,
} from "./requests.ts";

/** A step of a launch or of its undoing failed. */
export class LauncherFailure extends Error {
  /** The launcher's name of the step: `clone`, `overlay`, `cgroup` and so on. */
  readonly step: string;
  readonly errno: number | undefined;
  /** The launcher itself ended; how far the request got nobody knows. */
  readonly died: boolean;
  /** The launcher, or its process for the request, said nothing: it ended, was stopped, had no time or could not be started for a moment. Nothing is wrong with what was asked for. */
  readonly unanswered: boolean;
  constructor(
    step: string,
    message: string,
    errno?: number,
    options: { died?: boolean; unanswered?: boolean; cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? {} : { cause: options.cause });
    this.name = "LauncherFailure";
    this.step = step;
    this.errno = errno;
    this.died = options.died === true;
    this.unanswered = this.died || options.unanswered === true;
  }
}

export interface LaunchReply {
  pid: number;
  startTime: number;
  /** Microseconds of each step. */
  stages: readonly (readonly [string, number])[];
}

interface Reply {
  id: number;
  ok: boolean;
  /** No answer yet: the socket of the agent to come takes connections. */
  listening?: true;
  /** Who was to answer has ended over it. */
  unanswered?: true;
  pid?: number;
  start_time?: number;
  stages?: [string, number][];
  step?: string;
  message?: string;
  errno?: number;
}

/** One that wanted for descriptors has no pipes, and says so as its error. */
type Child = ChildProcess;
type PipedChild = ChildProcessByStdio<Writable, Readable, Readable>;
type Waiter = {
  resolve: (reply: Reply) => void;
  reject: (error: unknown) => void;
  onListening: (() => void) | undefined;
};

/** How long the launcher may take to answer, milliseconds. */
export interface LauncherPatience {
  /** Longer than it gives a request itself. */
  replyMs: number;
  /** The same for a removal, of which a second attempt has the rest of `replyMs`. */
  destroyMs: number;
  /** A removal that is refused only after so long wanted for time, of which the launcher itself gives it 4.5 s, and is repeated. */
  slowMs: number;
  /** For so long: whoever waits for a removal has left by then. */
  removalMs: number;
  /** The last part of each wait, in which one that has said nothing is asked what it answers at once: see `Launcher`. */
  aliveMs: number;
}

const usualPatience: LauncherPatience = {
  replyMs: 25_000,
  destroyMs: 10_000,
  slowMs: 4_000,
  removalMs: 30_000,
  aliveMs: 2_000,
};
const shiftMs = 600_000;
/** How long a launcher may take to end when the service does. */
const closeMs = 10_000;

/**
 * A resident `alcove-launch serve`: starting a program from a large process takes milliseconds, asking one that is there
 * takes none. It is started at the first request, again after it died, and ends with this process; sandboxes stay. One
 * that leaves a request unanswered and has said nothing else since, not even that it does not know the operation `alive`,
 * is killed: the next request starts another. One that answers that is only slow with the request, and what else it has
 * in hand goes on.
 */
export class Launcher implements AsyncDisposable {
  readonly #binary: string;
  readonly #logger: Logger;
  readonly #onRestart: () => void;
  readonly #waiting = new Map<number, Waiter>();
  #child: Child | undefined;
  #lastId = 0;
  readonly #patience: LauncherPatience;
  #closed = false;
  #started = false;
  /** When the child answered last, by the monotonic clock. */
  #answeredMs = 0;

  /** Arguments after `serve`; changes apply to the next start. */
  #arguments: readonly string[] = [];

  /** @param options.onRestart one took the place of one that died, and has been asked nothing yet. */
  constructor(options: {
    binary: string;
    logger: Logger;
    onRestart?: () => void;
    patience?: Partial<LauncherPatience>;
  }) {
    this.#patience = { ...usualPatience, ...options.patience };
    this.#binary = options.binary;
    this.#logger = options.logger;
    this.#onRestart = options.onRestart ?? (() => undefined);
  }

  /** From its next start on the launcher keeps writable layers ready. */
  keepDisks(options: { template: string; dir: string; count: number }): void {
    this.#arguments = [options.template, options.dir, String(options.count)];
  }

  /**
   * @param onListening what is said at the agent's socket waits there for it from now on.
   * @throws LauncherFailure; what was made until then is for `destroy` to undo.
   */
  async launch(spec: LaunchSpec, onListening?: () => void): Promise<LaunchReply> {
    return launchReply(await this.#ask("launch", spec, { onListening }));
  }

  /** Makes a sandbox up to where it becomes somebody's; it ends with this process, and with the launcher.
   *  @throws LauncherFailure; as `launch`. */
  async prepare(spec: LaunchSpec): Promise<LaunchReply> {
    return launchReply(await this.#ask("prepare", spec));
  }

  /** Makes one that was prepared somebody's, once.
   *  @throws LauncherFailure; what there is then, in either directory, is for `destroy` to undo. */
  async claim(spec: ClaimSpec): Promise<LaunchReply> {
    return launchReply(await this.#ask("claim", spec));
  }

  /** Resolves when every process is gone and the directory is out of sight. Idempotent, so a launcher that dies over it
   *  or does not answer is no failure, nor is a machine that is too busy for one attempt: it is done by a later one.
   *  @param options.once where it comes again by itself: one attempt is enough. */
  destroy(spec: DestroySpec, { once = false }: { once?: boolean } = {}): Promise<void> {
    return once ? this.#destroyOnce(spec) : this.#whileSlow(() => this.#destroyOnce(spec));
  }

  async #whileSlow(remove: () => Promise<unknown>): Promise<void> {
    const { slowMs, removalMs } = this.#patience;
    const startedMs = performance.now();
    for (;;) {
      const askedMs = performance.now();
      try {
        await remove();
        return;
      } catch (error) {
        const nowMs = performance.now();
        const refused = error instanceof LauncherFailure && !error.unanswered;
        const again = refused && nowMs - askedMs >= slowMs && nowMs - startedMs < removalMs;
        if (!again || this.#closed) throw error;
      }
    }
  }

  async #destroyOnce(spec: DestroySpec): Promise<void> {
    const { replyMs, destroyMs } = this.#patience;
    try {
      await this.#ask("destroy", spec, { waitMs: destroyMs });
    } catch (error) {
      if (!(error instanceof LauncherFailure && error.unanswered) || this.#closed) throw error;
      await this.#ask("destroy", spec, { waitMs: replyMs - destroyMs });
    }
  }

  async lend(spec: LendSpec): Promise<void> {
    await this.#ask("lend", spec);
  }

  /** Gives a sandbox that runs its network again, or a container its first. */
  async attach(spec: AttachSpec): Promise<void> {
    await this.#ask("attach", spec);
  }

  /** Resolves when nothing carries the network of a container any more. Idempotent, and repeated where it wanted for time. */
  async detach(spec: DetachSpec): Promise<void> {
    await this.#whileSlow(() => this.#ask("detach", spec));
  }

  /** @throws LauncherFailure where that is no process of this machine, or has the machine's name. */
  async name(spec: NameSpec): Promise<void> {
    await this.#ask("name", spec);
  }

  /** Copies a root file system into a range of ids; takes as long as its size asks for. */
  async shift(spec: ShiftSpec): Promise<void> {
    await this.#ask("shift", spec, { waitMs: shiftMs });
  }

  async #ask(
    op: "launch" | "prepare" | "claim" | "destroy" | "shift" | "lend" | "attach" | "detach" | "name",
    spec: LaunchSpec | ClaimSpec | DestroySpec | ShiftSpec | LendSpec | AttachSpec | DetachSpec | NameSpec,
    {
      waitMs = this.#patience.replyMs,
      onListening,
    }: { waitMs?: number; onListening?: (() => void) | undefined } = {},
  ): Promise<Reply> {
    if (this.#closed)
      throw new LauncherFailure("serve", "the launcher was closed", undefined, { unanswered: true });
    // It outlives the request that starts it, and so does what it says.
    const child = this.#child ?? outsideRequests(() => this.#start());
    this.#lastId += 1;
    const id = this.#lastId;
    const { promise, resolve, reject } = Promise.withResolvers<Reply>();
    this.#waiting.set(id, { resolve, reject, onListening });
    const askedMs = performance.now();
    const silent = () => this.#answeredMs < askedMs;
    const giveUp = () => {
      const message = `the launcher did not answer within ${waitMs} ms`;
      const hangs = silent();
      reject(new LauncherFailure("serve", message, undefined, { unanswered: true, died: hangs }));
      if (hangs) this.#replace(child, message);
    };
    const aliveMs = Math.min(this.#patience.aliveMs, waitMs);
    let timer = setTimeout(() => {
      if (silent()) this.#askWhetherAlive(child);
      // After a stall of this process timers come before what has arrived meanwhile is read, and `setImmediate` after it.
      timer = setTimeout(() => setImmediate(giveUp), aliveMs);
    }, waitMs - aliveMs);
    try {
      child.stdin?.write(`${JSON.stringify({ op, id, spec })}\n`);
      const reply = await promise;
      if (reply.ok) return reply;
      const { step = "serve", message = "no reason given", errno, unanswered = false } = reply;
      throw new LauncherFailure(step, message, errno, { unanswered });
    } finally {
      clearTimeout(timer);
      this.#waiting.delete(id);
    }
  }

  /** An operation that it does not know takes it all steps but the work: read, a process of its own, a refusal. */
  #askWhetherAlive(child: Child): void {
    this.#lastId += 1;
    child.stdin?.write(`${JSON.stringify({ op: "alive", id: this.#lastId })}\n`);
  }

  #start(): Child {
    const child: Child = spawn(this.#binary, ["serve", ...this.#arguments], {
      stdio: ["pipe", "pipe", "pipe"],
      env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin" },
      cwd: "/",
      detached: true,
    });
    this.#child = child;
    child.once("error", (cause) => {
      const message = `${this.#binary} cannot be started: ${cause.message}`;
      this.#lose(child, message, { cause, unanswered: isMomentary(cause) });
    });
    if (!isPiped(child)) return child;
    child.once("exit", (code, signal) => {
      this.#lose(child, `the launcher ended with ${signal ?? `code ${code}`}`, { died: true });
      if (!this.#closed)
        this.#logger.warn({ code, signal }, "the launcher ended; the next request starts it");
    });
    child.stdin.on("error", (error) =>
      this.#lose(child, `the launcher does not read: ${error.message}`, { died: true }),
    );
    const answers = createInterface({ input: child.stdout });
    answers.on("line", (line) => this.#receive(line));
    const words = createInterface({ input: child.stderr });
    words.on("line", (line) => this.#logger.warn({ line }, `the launcher says: ${line.slice(0, 200)}`));
    // Who reads by lines passes an error on, as one of its own.
    answers.on("error", (error) => this.#replace(child, `the launcher cannot be heard: ${messageOf(error)}`));
    words.on("error", (err) => this.#logger.warn({ err }, "what the launcher says cannot be heard"));
    // It must not keep this process alive; its end is noticed all the same.
    child.unref();
    if (this.#started) this.#onRestart();
    this.#started = true;
    return child;
  }

  /** It hangs, or is stopped: what it has in hand is repeated by the next one, or undone. */
  #replace(child: Child, cause: string): void {
    if (this.#child !== child) return;
    child.kill("SIGKILL");
    this.#lose(child, cause, { died: true });
  }

  #lose(child: Child, message: string, why: { died: true } | { cause: Error; unanswered: boolean }): void {
    // A later one has requests of its own.
    if (this.#child !== child) return;
    this.#child = undefined;
    for (const waiter of this.#waiting.values())
      waiter.reject(new LauncherFailure("serve", message, undefined, why));
    this.#waiting.clear();
  }

  #receive(line: string): void {
    let reply: Reply;
    let waiter: Waiter | undefined;
    try {
      reply = JSON.parse(line);
      this.#answeredMs = performance.now();
      waiter = this.#waiting.get(reply.id);
    } catch {
      // Half a line of a launcher that died: who waits for it learns so by its end, or by time.
      this.#logger.warn({ line: line.slice(0, 200) }, "the launcher said what is no answer");
      return;
    }
    if (reply.listening === true) waiter?.onListening?.();
    else waiter?.resolve(reply);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    const child = this.#child;
    if (child?.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
    child.ref();
    const ended = once(child, "exit");
    child.stdin?.end();
    // What it has in hand, a copy of an image above all, may take minutes; the next start undoes what is half done.
    const impatient = setTimeout(() => child.kill("SIGKILL"), closeMs);
    await ended;
    clearTimeout(impatient);
  }
}

/** Types say that it always is: Node leaves the pipes out where there is no descriptor for them. */
function isPiped(child: Child): child is PipedChild {
  return Boolean(child.stdin && child.stdout && child.stderr);
}

function launchReply(reply: Reply): LaunchReply {
  return { pid: reply.pid ?? 0, startTime: reply.start_time ?? 0, stages: reply.stages ?? [] };
}
