import { once } from "node:events";

/** Writes and waits while the reader is behind, so that nothing piles up. */
export async function write(stream: NodeJS.WriteStream, data: string | Uint8Array): Promise<void> {
  if (!stream.write(data)) await once(stream, "drain");
}

/** Resolves when everything written has left the process. */
export async function flush(stream: NodeJS.WriteStream): Promise<void> {
  await new Promise<void>((resolve) => {
    stream.write("", () => resolve());
  });
}

/** A reader that goes away, as in `alcove ls | head -1`, ends the command quietly. */
export function exitWhenReaderLeaves(): void {
  for (const stream of [process.stdout, process.stderr]) {
    stream.on("error", (error: NodeJS.ErrnoException) => {
      process.exit(error.code === "EPIPE" ? 0 : 1);
    });
  }
}

/** JSON for people and programs: indented on a terminal, on one line elsewhere. */
export function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, process.stdout.isTTY ? 2 : undefined)}\n`);
}
