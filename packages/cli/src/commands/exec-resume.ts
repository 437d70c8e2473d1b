import { setTimeout as pause } from "node:timers/promises";
import { type AlcoveClient, AlcoveError } from "@alcove/sdk";
import type { ExecStreamChunk } from "@alcove/wire";
import { write } from "../terminal/output.ts";
import type { OutputProgress } from "./output-progress.ts";

/** As long as the service keeps a command whose reader is gone, by default. */
export const patienceMs = 30_000;
const pauseMs = 200;

/**
 * Picks a command up again after its connection broke, also across a restart of the service.
 * @throws the cause when the service does not come back in time or no longer knows the command.
 */
export async function resumeOutput(options: {
  client: AlcoveClient;
  id: string;
  execId: string;
  progress: OutputProgress;
  cause: AlcoveError;
  /** Where output goes; left out: to ours. */
  take?: (stream: "stdout" | "stderr", data: Buffer) => Promise<void> | void;
}): Promise<Extract<ExecStreamChunk, { stream: "exit" }>> {
  const { client, id, execId, progress, take = pass } = options;
  let deadline = performance.now() + patienceMs;
  while (performance.now() < deadline) {
    try {
      const wanted = { from: progress.next, follow: true, encoding: "base64" } as const;
      for await (const chunk of await client.execOutput(id, execId, wanted)) {
        if (chunk.stream === "exit") {
          progress.end(chunk);
          return chunk;
        }
        const bytes = progress.take(chunk);
        deadline = performance.now() + patienceMs;
        await take(chunk.stream, bytes);
      }
    } catch (error) {
      const gone = error instanceof AlcoveError && error.status >= 400 && error.status < 500;
      if (gone) throw options.cause;
    }
    await pause(pauseMs);
  }
  throw options.cause;
}

export function tellBroken(execId: string): void {
  process.stderr.write(`alcove: the connection broke; picking ${execId} up again\n`);
}

async function pass(stream: "stdout" | "stderr", data: Buffer): Promise<void> {
  await write(stream === "stdout" ? process.stdout : process.stderr, data);
}
