import { type AlcoveClient, AlcoveError } from "@alcove/sdk";
import type { ExecRequest, ExecStreamChunk } from "@alcove/wire";
import { ExitWith, exitCodes } from "../exit-codes.ts";
import { write } from "../terminal/output.ts";
import { printableLine } from "../terminal/printable.ts";
import { exitCodeOfExec } from "./exec-code.ts";
import { resumeOutput, tellBroken } from "./exec-resume.ts";
import { forwardSignals } from "./forward-signals.ts";
import { OutputProgress } from "./output-progress.ts";

/**
 * Runs one command that reads nothing, with its output on ours: over plain HTTP, because loading a WebSocket client takes
 * longer than a short command. @returns the exit code for this process.
 */
export async function runStream(options: {
  client: AlcoveClient;
  id: string;
  request: Omit<ExecRequest, "stream">;
}): Promise<number> {
  const { client, id, request } = options;
  const left = Promise.withResolvers<never>();
  left.promise.catch(() => undefined);
  const caller = new AbortController();
  let execId: string | undefined;
  using _signals = forwardSignals({
    send: (signal) => {
      // Before the command has a name there is nobody to tell: the request is given up.
      if (execId === undefined) caller.abort();
      // What cannot be delivered has nobody left to hear it: the stream tells the command's end.
      else client.signalExec(id, execId, signal).catch(() => undefined);
    },
    leave: (why) => {
      process.stderr.write(`\r\nalcove: left ${printableLine(execId ?? "the command")}; ${why}\n`);
      left.reject(new ExitWith(exitCodes.interrupted));
    },
  });
  // Bytes pass as the command writes them, whatever they are.
  const stream = await client.execStream(id, { ...request, encoding: "base64" }, { signal: caller.signal });
  execId = stream.execId;
  return await Promise.race([follow({ ...options, ...stream }), left.promise]);
}

async function follow(stream: {
  client: AlcoveClient;
  id: string;
  execId: string | undefined;
  chunks: AsyncIterable<ExecStreamChunk>;
}): Promise<number> {
  const { client, id, execId } = stream;
  const progress = new OutputProgress();
  let cause = new AlcoveError({ status: 0, code: "cut", message: "the connection broke" });
  try {
    for await (const chunk of stream.chunks) {
      if (chunk.stream === "exit") {
        progress.end(chunk);
        return progress.exitCode(exitCodeOfExec(chunk));
      }
      const bytes = progress.take(chunk);
      await write(chunk.stream === "stdout" ? process.stdout : process.stderr, bytes);
    }
  } catch (error) {
    if (!(error instanceof AlcoveError) || error.code !== "cut") throw error;
    cause = error;
  }
  if (execId === undefined) throw cause;
  tellBroken(execId);
  const exit = await resumeOutput({ client, id, execId, progress, cause });
  return progress.exitCode(exitCodeOfExec(exit));
}
