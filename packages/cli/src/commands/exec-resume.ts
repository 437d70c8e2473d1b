import { setTimeout as pause } from "node:timers/promises";
import { type AlcoveClient, AlcoveError } from "@alcove/sdk";
import type { ExecStreamChunk } from "@alcove/wire";
import { write } from "../terminal/output.ts";
import { printableLine } from "../terminal/printable.ts";
import type { OutputProgress } from "./output-progress.ts";

/** As long as the service keeps a command whose reader is gone, by default. */
export const patienceMs = 30_000;
const pauseMs = 200;

/**
 * Picks a command up again after its connection broke, also across a restart of the service.
 * @throws the cause when the service does not come back in time, with the refusal when it refuses.
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
      if (error instanceof AlcoveError && error.status >= 400 && error.status < 500)
        throw notPickedUp(options.cause, error);
    }
    await pause(pauseMs);
  }
  throw options.cause;
}

/** A key that is not accepted any more keeps its code, and so the advice for it. */
export function notPickedUp(cause: AlcoveError, refusal: AlcoveError): AlcoveError {
  const ofKey = refusal.status === 401 || refusal.status === 403;
  return new AlcoveError({
    status: ofKey ? refusal.status : 0,
    code: ofKey ? refusal.code : "cut",
    message: `${cause.message}, and it cannot be picked up: ${refusal.message}`,
    cause: refusal,
  });
}

export function tellBroken(execId: string): void {
  process.stderr.write(`alcove: the connection broke; picking ${printableLine(execId)} up again\n`);
}

async function pass(stream: "stdout" | "stderr", data: Buffer): Promise<void> {
  await write(stream === "stdout" ? process.stdout : process.stderr, data);
}
