import { Readable } from "node:stream";
import type { FastifyReply } from "fastify";
import { WrittenOutput } from "../core/exec/written-output.ts";
import { shareOf } from "./share.ts";

/** Output of more bytes is sent in pieces. */
const wholeBytes = 48 * 1024;

/** Answers with JSON; what a command has written is spelled out while it is sent, as fast as the caller takes it. */
export function sendJson(reply: FastifyReply, body: Readonly<Record<string, unknown>>): void {
  reply.type("application/json; charset=utf-8");
  const nextTurn = () => reply.server.turns.next(shareOf(reply.request));
  if (outputBytes(body) > wholeBytes)
    reply.send(Readable.from(jsonPieces(body, nextTurn), { objectMode: false }));
  else reply.serializer((text: unknown) => text as string).send(JSON.stringify(body));
}

/** The body as JSON, in pieces, before each of which it waits for a turn. */
export async function* jsonPieces(
  body: Readonly<Record<string, unknown>>,
  nextTurn: () => Promise<void>,
): AsyncGenerator<Buffer> {
  const { written, rest } = parted(body);
  let before = "{";
  for (const [name, output] of written) {
    yield Buffer.from(`${before}${JSON.stringify(name)}:"`);
    await nextTurn();
    for (const piece of output.pieces()) {
      yield Buffer.from(JSON.stringify(piece).slice(1, -1));
      await nextTurn();
    }
    before = '",';
  }
  const others = JSON.stringify(rest).slice(1);
  yield Buffer.from(others === "}" && before !== "{" ? '"}' : before + others);
}

function outputBytes(body: Readonly<Record<string, unknown>>): number {
  let sum = 0;
  for (const name in body) {
    const value = body[name];
    if (value instanceof WrittenOutput) sum += value.byteLength;
  }
  return sum;
}

function parted(body: Readonly<Record<string, unknown>>): {
  written: [name: string, output: WrittenOutput][];
  rest: Record<string, unknown>;
} {
  const written: [string, WrittenOutput][] = [];
  const rest: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(body))
    if (value instanceof WrittenOutput) written.push([name, value]);
    else rest[name] = value;
  return { written, rest };
}
