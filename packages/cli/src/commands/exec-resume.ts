import { setTimeout as pause } from "node:timers/promises";
import { type AlcoveClient, AlcoveError, bytesOf } from "@alcove/sdk";
import type { ExecStreamChunk } from "@alcove/wire";
import { write } from "../terminal/output.ts";

/** As long as the service keeps a command whose reader is gone, by default. */
export const patienceMs = 30_000;
const pauseMs = 200;

/**
 * Picks a command up again after its connection broke, also across a restart of the service.
 * @param options.from offset of the first byte not yet seen.
 * @throws the cause when the service does not come back in time or no longer knows the command.
 */
export async function resumeOutput(options: {
  client: AlcoveClient;
  id: string;
  execId: string;
  from: number;
  cause: AlcoveError;
  /** Where output goes; left out: to ours. */
  take?: (stream: "stdout" | "stderr", data: Buffer) => Promise<void> | void;
}): Promise<Extract<ExecStreamChunk, { stream: "exit" }>> {
  const { client, id, execId, take = pass } = options;
  let { from } = options;
  let deadline = performance.now() + patienceMs;
  tellBroken(execId);
  while (performance.now() < deadline) {
    try {
      const wanted = { from, follow: true, encoding: "base64" } as const;
      for await (const chunk of await client.execOutput(id, execId, wanted)) {
        if (chunk.stream === "exit") return chunk;
        const bytes = bytesOf(chunk);
        if (chunk.notice !== true) from = (chunk.offset ?? from) + bytes.length;
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
