import { Readable } from "node:stream";
import { setImmediate as nextTurn } from "node:timers/promises";
import type { FastifyReply } from "fastify";

/** A longer list is sent in pieces of so many items: some milliseconds of work each. */
const itemsAtOnce = 500;

/**
 * Answers with a list that may be long, as the route's schema of a 200 writes it: presented and spelled out while it is sent,
 * with a turn for everybody else after each piece.
 */
export function sendList<T>(reply: FastifyReply, items: readonly T[], present: (item: T) => unknown): void {
  // What cannot be presented is a refusal where it is told before anything was sent.
  if (items.length <= itemsAtOnce) void reply.send(items.map(present));
  else
    void reply
      .type("application/json; charset=utf-8")
      .send(Readable.from(listPieces(reply, items, present), { objectMode: false }));
}

async function* listPieces<T>(
  reply: FastifyReply,
  items: readonly T[],
  present: (item: T) => unknown,
): AsyncGenerator<string> {
  let before = "[";
  for (let from = 0; from < items.length; from += itemsAtOnce) {
    const some: unknown = items.slice(from, from + itemsAtOnce).map(present);
    const text = String(reply.serializeInput(some as Record<string, unknown>, "200"));
    yield before + text.slice(1, -1);
    before = ",";
    await nextTurn();
  }
  yield "]";
}
