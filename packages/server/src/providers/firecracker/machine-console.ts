import { closeSync, constants, openSync, readSync } from "node:fs";
import { appendFile, readFile, stat, writeFile } from "node:fs/promises";
import { Socket } from "node:net";
import { join } from "node:path";
import { exists, orMissing } from "../../platform/missing.ts";
import { runProgram } from "../../platform/run-program.ts";
import type { CallOptions } from "../../ports/index.ts";

/** What is kept of a console, and how long its file may become before it is cut back to that. */
const keptBytes = 128 * 1024;
const longestBytes = 2 * keptBytes;
const carriageReturn = 0x0d;

/** The last of what a machine says, in `<folder>/console.log`. */
const logOf = (folder: string) => join(folder, "console.log");
/** What Firecracker writes its output to, the guest's console. */
const pipeOf = (folder: string) => join(folder, "console");

/**
 * Reads what a machine writes to its console. Between both is a pipe with a name, which outlives this service: Firecracker
 * drops what does not fit, so that a guest that writes without end fills no disk and is never held up, with or without a
 * service that reads.
 */
export class MachineConsole implements AsyncDisposable {
  readonly #log: string;
  readonly #fd: number;
  readonly #pipe: Socket;
  #size: number;
  #writing: Promise<void> = Promise.resolve();

  private constructor(options: { log: string; fd: number; size: number }) {
    this.#log = options.log;
    this.#fd = options.fd;
    this.#size = options.size;
    this.#pipe = new Socket({ fd: options.fd, readable: true, writable: false });
    this.#pipe.on("error", () => undefined);
    this.#pipe.on("data", (data: Buffer) => {
      this.#pipe.pause();
      void this.#take(data).finally(() => this.#pipe.resume());
    });
    // Nobody waits for what a machine says.
    this.#pipe.unref();
  }

  /** Makes the pipe, at the first use, and begins to read it. */
  static async open(folder: string, options: CallOptions): Promise<MachineConsole> {
    if (!(await exists(pipeOf(folder)))) await runProgram("mkfifo", ["-m", "600", pipeOf(folder)], options);
    const size = (await orMissing(stat(logOf(folder)), undefined))?.size ?? 0;
    // For both, so that it never ends while nobody writes.
    const fd = openSync(pipeOf(folder), constants.O_RDWR | constants.O_NONBLOCK);
    return new MachineConsole({ log: logOf(folder), fd, size });
  }

  /** A descriptor for the output of a machine, to be closed once it was handed on. It keeps the pipe open on both sides. */
  static output(folder: string): number {
    return openSync(pipeOf(folder), constants.O_RDWR | constants.O_NONBLOCK);
  }

  /** Takes what is left in the pipe; of one who goes on writing, more than is kept. */
  async drain(): Promise<void> {
    const rest = Buffer.alloc(keptBytes);
    for (let taken = 0; taken < longestBytes; ) {
      const length = readNow(this.#fd, rest);
      if (length === 0) break;
      taken += length;
      await this.#take(Buffer.from(rest.subarray(0, length)));
    }
    await this.#writing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#pipe.removeAllListeners("data").destroy();
    await this.#writing;
  }

  #take(data: Buffer): Promise<void> {
    this.#writing = this.#writing.then(() => this.#write(data)).catch(() => undefined);
    return this.#writing;
  }

  async #write(data: Buffer): Promise<void> {
    const text = data.filter((byte) => byte !== carriageReturn);
    if (this.#size + text.length <= longestBytes) {
      await appendFile(this.#log, text, { mode: 0o600 });
      this.#size += text.length;
      return;
    }
    const kept = Buffer.concat([await readFile(this.#log), text]).subarray(-keptBytes);
    await writeFile(this.#log, kept, { mode: 0o600 });
    this.#size = kept.length;
  }
}

/** @returns 0 when nothing is there, or it was closed. */
function readNow(fd: number, into: Buffer): number {
  try {
    return readSync(fd, into);
  } catch {
    return 0;
  }
}

export const closeOutput = closeSync;
