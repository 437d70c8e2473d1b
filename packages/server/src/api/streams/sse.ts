import type { FastifyReply } from "fastify";
import { CallerGone, ShuttingDown } from "../../platform/deadline.ts";
import type { Logger } from "../../platform/logger.ts";
import { shareOf } from "../share.ts";
import { ResponseStream } from "./response-stream.ts";

const heartbeatMs = 15_000;
const reconnectMs = 2_000;

/** An event as `text/event-stream` has it. */
export function eventText(data: unknown, id?: string): string {
  const idLine = id === undefined ? "" : `id: ${id}\n`;
  return `${idLine}data: ${JSON.stringify(data)}\n\n`;
}

/**
 * Writes texts of events, of one or many together, as `text/event-stream` until they end or the caller goes: `id:`, `data:` and `retry:` lines, and a
 * comment every 15 s so that proxies and readers see life. `openingId` goes out before any event: a reader that loses its
 * connection before it has seen one comes back with it and misses nothing.
 */
export async function sendEventStream(
  reply: FastifyReply,
  events: AsyncIterable<string>,
  options: { signal: AbortSignal; logger: Logger; openingId?: string },
): Promise<void> {
  const share = shareOf(reply.request);
  const stream = ResponseStream.open(reply, {
    signal: options.signal,
    headers: {
      "content-type": "text/event-stream; charset=utf-8",
      "cache-control": "no-store",
      "x-accel-buffering": "no",
    },
  });
  const { turns } = reply.server;
  let waiting = false;
  const heartbeat = setInterval(() => {
    if (!waiting) stream.write(": heartbeat\n\n");
  }, heartbeatMs);
  heartbeat.unref();
  try {
    const openingId = options.openingId === undefined ? "" : `id: ${options.openingId}\n`;
    stream.write(`retry: ${reconnectMs}\n${openingId}\n`);
    for await (const text of events) {
      const turn = turns.claim(share);
      if (turn !== undefined) await turn;
      if (stream.write(text)) continue;
      waiting = true;
      await stream.drained();
      waiting = false;
    }
    stream.end();
  } catch (error) {
    if (!(error instanceof CallerGone) && !(error instanceof ShuttingDown))
      options.logger.warn({ request_id: reply.request.id, err: error }, "event stream cut");
    stream.end();
  } finally {
    clearInterval(heartbeat);
  }
}
