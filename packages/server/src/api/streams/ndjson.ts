import type { OutputEncoding } from "@alcove/wire";
import type { FastifyReply } from "fastify";
import type { ExecFollow } from "../../core/exec/exec-follower.ts";
import { CallerGone, ShuttingDown } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { shareOf } from "../share.ts";
import { exitFields, lostField, OutputDecoder, type OutputText } from "./output-text.ts";
import { ResponseStream } from "./response-stream.ts";

/**
 * Writes a command's output as one JSON object per line. Ends with an `exit` line, with reason `lost` when
 * the sandbox ended; a stream without one was cut and can be picked up, from the next process if this one stops. A slow reader slows the command down;
 * lines are spelled out in turns with what else is read and answered. docs/api/exec.md.
 */
export async function sendExecStream(
  reply: FastifyReply,
  follow: ExecFollow,
  options: {
    signal: AbortSignal;
    encoding: OutputEncoding | undefined;
    logger: Logger;
    headers?: Record<string, string>;
  },
): Promise<void> {
  await using _released = follow;
  const share = shareOf(reply.request);
  const stream = ResponseStream.open(reply, {
    signal: options.signal,
    headers: {
      "content-type": "application/x-ndjson",
      "cache-control": "no-store",
      "x-exec-id": follow.execId,
      ...options.headers,
    },
  });
  const decoder = new OutputDecoder(options.encoding);
  const { turns } = reply.server;
  try {
    for await (const event of follow.events) {
      const turn = turns.claim(share);
      if (turn !== undefined) await turn;
      let room = true;
      for (const piece of decoder.decode(event)) room = stream.write(line(piece));
      if (!room) await stream.drained();
    }
    stream.end();
  } catch (error) {
    // At a stop of the service its reader picks it up again, as after any other cut.
    if (!(error instanceof CallerGone || options.signal.reason instanceof ShuttingDown))
      options.logger.warn(
        { request_id: reply.request.id, exec_id: follow.execId, err: error },
        "exec stream cut",
      );
    stream.cut();
  }
}

function line(piece: OutputText): string {
  if (piece.stream === "exit")
    return `${JSON.stringify({ stream: "exit", data: "", ...exitFields(piece.exit), ...lostField(piece) })}\n`;
  // Written by hand: this is every line of every stream. Base64 needs no escapes.
  const data = piece.encoding === "base64" ? `"${piece.data}"` : JSON.stringify(piece.data);
  const encoding = piece.encoding === undefined ? "" : `,"encoding":"${piece.encoding}"`;
  const notice = piece.notice === undefined ? "" : `,"notice":true`;
  const lost = piece.lostBytes === undefined ? "" : `,"lost_bytes":${piece.lostBytes}`;
  const next = piece.nextOffset === undefined ? "" : `,"next_offset":${piece.nextOffset}`;
  return `{"stream":"${piece.stream}","data":${data},"offset":${piece.offset}${next}${encoding}${notice}${lost}}\n`;
}
