import { execFile } from "node:child_process";
import { promisify } from "node:util";
import type { Logger } from "@alcove/server/logger";

/** `systemd-notify` itself waits up to 5 seconds until it was read. */
const tellDeadlineMs = 10_000;

/**
 * Tells systemd, or whoever else gave the process a `NOTIFY_SOCKET`, how the service is. Node cannot send a datagram to a Unix
 * socket, so `systemd-notify` does it, in the name of this process. It is `silent` without a socket, and otherwise tells one
 * message after the other until it is disposed; what cannot be told is logged once and is no failure of the service.
 */
export class Supervisor implements Disposable {
  readonly #socket: string | undefined;
  readonly #watchdogMs: number | undefined;
  readonly #logger: Logger;
  #told: Promise<void> = Promise.resolve();
  #failed = false;
  #watchdog: NodeJS.Timeout | undefined;

  /** @param env what is read is taken out of it: children of the service are nobody's to supervise. */
  constructor(options: { env: NodeJS.ProcessEnv; pid: number; logger: Logger }) {
    const { env, pid, logger } = options;
    this.#socket = env.NOTIFY_SOCKET === "" ? undefined : env.NOTIFY_SOCKET;
    const usec = Number(env.WATCHDOG_USEC);
    const ours = env.WATCHDOG_PID === undefined || Number(env.WATCHDOG_PID) === pid;
    this.#watchdogMs = ours && usec > 0 ? usec / 1_000 : undefined;
    this.#logger = logger;
    for (const name of ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"]) delete env[name];
  }

  /** @param status one line for people. */
  ready(status: string): Promise<void> {
    return this.#tell("READY=1", `STATUS=${status}`);
  }

  stopping(status: string): Promise<void> {
    return this.#tell("STOPPING=1", `STATUS=${status}`);
  }

  /** Signs of life for as long as the event loop turns, three in the time after which the process would be ended. */
  keepAlive(): void {
    if (this.#socket === undefined || this.#watchdogMs === undefined) return;
    let under = false;
    const beat = async () => {
      if (under) return;
      under = true;
      await this.#tell("WATCHDOG=1");
      under = false;
    };
    this.#watchdog = setInterval(() => void beat(), this.#watchdogMs / 3);
    this.#watchdog.unref();
    void beat();
  }

  [Symbol.dispose](): void {
    clearInterval(this.#watchdog);
  }

  #tell(...message: string[]): Promise<void> {
    const socket = this.#socket;
    if (socket === undefined) return Promise.resolve();
    this.#told = this.#told.then(async () => {
      try {
        const env = { PATH: process.env.PATH, NOTIFY_SOCKET: socket };
        await promisify(execFile)("systemd-notify", message, { env, timeout: tellDeadlineMs });
        this.#failed = false;
      } catch (error) {
        if (this.#failed) return;
        this.#failed = true;
        this.#logger.warn(
          { err: error },
          "systemd-notify failed: the supervisor does not learn how the service is; a unit with Type=exec and without WatchdogSec does not wait for it",
        );
      }
    });
    return this.#told;
  }
}
