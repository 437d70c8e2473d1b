import { once } from "node:events";
import { writeSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { exitCodes } from "../exit-codes.ts";
import { printableLine } from "./printable.ts";

/** Writes and waits while the reader is behind, so that nothing piles up. */
export async function write(stream: NodeJS.WriteStream, data: string | Uint8Array): Promise<void> {
  if (!stream.write(data)) await once(stream, "drain");
}

/** How long the end of a service waits for readers of what it printed. */
const readerPatienceMs = 1_000;
let outlives = false;

/** Resolves when everything written has left the process; for a service also when its readers take too long. */
export async function flushOutput(): Promise<void> {
  const flushed = Promise.all([process.stdout, process.stderr].map(flush));
  await (outlives ? Promise.race([flushed, setTimeout(readerPatienceMs)]) : flushed);
}

async function flush(stream: NodeJS.WriteStream): Promise<void> {
  await new Promise<void>((resolve) => {
    stream.write("", () => resolve());
  });
}

/** What a command ends with whose output cannot be written, as on a full disk, and one whose reader has left. */
let failedCode: number = exitCodes.failed;
let unreadCode: number = exitCodes.ok;

/** Of commands that end with the code of somebody else's: what becomes of their output is no matter of that one. */
export function outputFailsWith(code: number, unread: number): void {
  failedCode = code;
  unreadCode = unread;
}

/** A reader that goes away, as in `alcove ls | head -1`, ends the command quietly; a service only loses that reader. */
export function exitWhenReaderLeaves(): void {
  for (const stream of [process.stdout, process.stderr]) {
    stream.on("error", (error: NodeJS.ErrnoException) => {
      if (outlives) return;
      if (error.code === "EPIPE") process.exit(unreadCode);
      if (stream === process.stdout) sayOutputFailed(error);
      process.exit(failedCode);
    });
  }
}

function sayOutputFailed(error: Error): void {
  try {
    // The process ends with this turn.
    writeSync(2, `alcove: standard output cannot be written: ${error.message}\n`);
  } catch {
    // Standard error may be the same file; the code is all that is left to tell it by.
  }
}

/** From now on this is a service: readers that go away or stall, and full disks, end and hold up nothing. */
export function outliveReaders(): void {
  outlives = true;
}

/** Names and addresses that a service gave, a line each: whatever else is in them gives a terminal no orders. */
export function printLines(lines: readonly string[]): void {
  process.stdout.write(lines.map((line) => `${printableLine(line)}\n`).join(""));
}

/** JSON for people and programs: indented on a terminal, on one line elsewhere. */
export function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, process.stdout.isTTY ? 2 : undefined)}\n`);
}
