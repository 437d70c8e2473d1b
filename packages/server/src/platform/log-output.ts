import { closeSync, constants, fstatSync, openSync, writeSync } from "node:fs";
import { outsideRequests } from "./request-scope.ts";

/** What is held for a reader that is behind. */
const heldBytes = 1_048_576;
/** How soon a write is tried again: to a reader that is behind, to a disk that took nothing. */
const behindMs = 50;
const refusedMs = 1_000;
/** How long the end of the process waits for a reader that is behind. */
const exitPatienceMs = 500;

/**
 * Where log lines go: a descriptor that nobody waits for and whose failures are nobody's. A line is written at once, or
 * held while the reader is behind or the disk is full. What finds no room any more is counted, and told where it is
 * missing as soon as half of what was held is out. At the end of the process what is held gets a moment to leave.
 *
 * Pipes and terminals are opened again, because whether writes to a descriptor wait is shared with every process that
 * has it. Writes to files do not wait but for the disk itself.
 */
export class LogOutput {
  readonly #fd: number;
  readonly #onDropped: (lines: number) => void;
  #held: Buffer[] = [];
  #heldBytes = 0;
  #dropped = 0;
  #timer: NodeJS.Timeout | undefined;

  /** @param onDropped called with the number of lines that are missing, to write one that says so. */
  constructor(options: { fd: number; onDropped: (lines: number) => void }) {
    this.#fd = unwaiting(options.fd);
    this.#onDropped = options.onDropped;
    process.on("exit", () => this.#leave());
  }

  /** Never waits, never throws. */
  write(line: string): void {
    if (this.#dropped > 0) {
      this.#dropped++;
      return;
    }
    const bytes = Buffer.from(line);
    if (this.#heldBytes > 0 && this.#heldBytes + bytes.length > heldBytes) {
      this.#dropped++;
      return;
    }
    this.#held.push(bytes);
    this.#heldBytes += bytes.length;
    if (this.#timer === undefined) this.#drain();
  }

  #drain(): void {
    const obstacle = this.#writeHeld();
    if (this.#heldBytes > 0) {
      this.#timer = outsideRequests(() =>
        setTimeout(
          () => {
            this.#timer = undefined;
            this.#drain();
          },
          obstacle === "behind" ? behindMs : refusedMs,
        ),
      );
      this.#timer.unref();
    }
    if (this.#dropped > 0 && this.#heldBytes <= heldBytes / 2) {
      const lines = this.#dropped;
      this.#dropped = 0;
      outsideRequests(() => this.#onDropped(lines));
    }
  }

  /** @returns why something is still held; undefined when nothing is. */
  #writeHeld(): "behind" | "refused" | undefined {
    while (this.#heldBytes > 0) {
      const [first] = this.#held;
      const bytes = this.#held.length === 1 && first !== undefined ? first : Buffer.concat(this.#held);
      this.#held = [bytes];
      try {
        const written = writeSync(this.#fd, bytes);
        this.#held = written === bytes.length ? [] : [bytes.subarray(written)];
        this.#heldBytes -= written;
      } catch (error) {
        return (error as NodeJS.ErrnoException).code === "EAGAIN" ? "behind" : "refused";
      }
    }
    return undefined;
  }

  /** The process ends: nothing else runs any more, so this may wait. */
  #leave(): void {
    const untilMs = performance.now() + exitPatienceMs;
    const nothing = new Int32Array(new SharedArrayBuffer(4));
    while (this.#writeHeld() === "behind" && performance.now() < untilMs) Atomics.wait(nothing, 0, 0, 10);
  }
}

/** @returns a descriptor of the same file on which no write waits. */
function unwaiting(fd: number): number {
  const kind = fstatSync(fd);
  if (kind.isFIFO() || kind.isCharacterDevice()) {
    const { O_WRONLY, O_NONBLOCK, O_NOCTTY } = constants;
    try {
      const opened = openSync(`/proc/self/fd/${fd}`, O_WRONLY | O_NONBLOCK | O_NOCTTY);
      const same = fstatSync(opened);
      if (same.ino === kind.ino && same.dev === kind.dev) return opened;
      closeSync(opened);
    } catch {
      // Another user's, or its reader has left: the one that is there has to do.
    }
  }
  // Of sockets there is one only; Node makes it unwaiting when it opens its own stream on it.
  if (fd === 1) void process.stdout;
  if (fd === 2) void process.stderr;
  return fd;
}
