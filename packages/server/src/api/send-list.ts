import { Readable } from "node:stream";
import type { FastifyReply } from "fastify";
import { textLength } from "../platform/text-length.ts";
import { shareOf } from "./share.ts";

/** A longer list is sent in pieces of so many items: some milliseconds of work each. */
const itemsAtOnce = 500;
/** A piece ends with the item that brings its texts to so many characters, which may be spelled out as six times as many. */
const lengthAtOnce = 65_536;

/**
 * Answers with a list that may be long, as the route's schema of a 200 writes it: presented and spelled out while it is sent,
 * each piece in a turn that it has waited for.
 */
export function sendList<T>(reply: FastifyReply, items: readonly T[], present: (item: T) => unknown): void {
  // What cannot be presented is a refusal where it is told before anything was sent.
  const first = pieceOf(items, 0, present);
  if (first.length === items.length) void reply.send(first);
  else
    void reply
      .type("application/json; charset=utf-8")
      .send(Readable.from(listPieces(reply, items, { first, present }), { objectMode: false }));
}

async function* listPieces<T>(
  reply: FastifyReply,
  items: readonly T[],
  { first, present }: { first: unknown[]; present: (item: T) => unknown },
): AsyncGenerator<string> {
  const { turns } = reply.server;
  const share = shareOf(reply.request);
  let before = "[";
  for (let at = 0; at < items.length; ) {
    await turns.next(share);
    const some = at === 0 ? first : pieceOf(items, at, present);
    at += some.length;
    const text = String(reply.serializeInput(some as unknown as Record<string, unknown>, "200"));
    yield before + text.slice(1, -1);
    before = ",";
  }
  yield "]";
}

/** The next items as they are presented, at least one where there is one. */
function pieceOf<T>(items: readonly T[], from: number, present: (item: T) => unknown): unknown[] {
  const piece: unknown[] = [];
  let length = 0;
  for (let at = from; at < items.length && piece.length < itemsAtOnce && length < lengthAtOnce; at++) {
    const item = present(items[at] as T);
    length += textLength(item);
    piece.push(item);
  }
  return piece;
}
