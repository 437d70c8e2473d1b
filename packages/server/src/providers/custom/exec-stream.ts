import type { IncomingMessage } from "node:http";
import { type Static, Type } from "typebox";
import { ByteBlocks } from "../../platform/byte-blocks.ts";
import { DeadlineExceeded } from "../../platform/deadline.ts";
import type { Taker } from "../../platform/fair-turns.ts";
import { backendTurns } from "./backend-turns.ts";
import { ExecEvents } from "./contract-schemas.ts";
import { checked, parsed, Unreadable } from "./tolerant-reader.ts";

export type ExecStreamEvent =
  | Static<(typeof ExecEvents)["start"]>
  | { type: "output"; stream: "stdout" | "stderr"; data: Buffer }
  | Static<(typeof ExecEvents)["exit"]>;

/** 256 KiB of output in base64, and room for what stands around it. */
const lineAtMost = 400_000;
const newline = 0x0a;
const base64Text = /^[A-Za-z0-9+/]*={0,2}$/;

/**
 * The lines of a command's stream. Ends where the stream does, with or without an exit.
 * @param options.silenceMs how long it may stand still while somebody waits for it. @param options.taker whose turns it is read in.
 * @throws Unreadable for what is no stream of the contract; DeadlineExceeded for one that stands still.
 */
export async function* execStream(
  response: IncomingMessage,
  { silenceMs, taker }: { silenceMs: number; taker: Taker },
): AsyncGenerator<ExecStreamEvent> {
  const waiting = new ByteBlocks();
  try {
    for await (const part of unlessSilent(response, silenceMs)) {
      let from = 0;
      for (let end = part.indexOf(newline); end >= 0; end = part.indexOf(newline, from)) {
        const turn = backendTurns.claim(taker);
        if (turn !== undefined) await turn;
        waiting.add(part.subarray(from, end));
        from = end + 1;
        const event = eventOf(waiting.take());
        if (event !== undefined) yield event;
      }
      waiting.add(part.subarray(from));
      if (waiting.bytes > lineAtMost) throw new Unreadable(`it has a line of more than ${lineAtMost} bytes`);
    }
  } finally {
    response.destroy();
  }
}

/** An answer as it comes. @throws DeadlineExceeded for one that stands still. */
export async function* unlessSilent(response: IncomingMessage, silenceMs: number): AsyncGenerator<Buffer> {
  const parts = response[Symbol.asyncIterator]();
  for (;;) {
    // Only while it is waited for: who reads slowly makes it stand still too.
    const timer = setTimeout(() => response.destroy(new DeadlineExceeded(silenceMs)), silenceMs);
    const next = await parts.next().finally(() => clearTimeout(timer));
    if (next.done) return;
    yield next.value;
  }
}

/** @returns undefined for a line that says nothing here. */
function eventOf(line: Buffer): ExecStreamEvent | undefined {
  if (line.length > lineAtMost) throw new Unreadable(`it has a line of more than ${lineAtMost} bytes`);
  if (isBlank(line)) return undefined;
  const said = parsed(line);
  const { type } = checked(TypeOnly, said);
  switch (type) {
    case "start":
      return checked(ExecEvents.start, said);
    case "exit":
      return checked(ExecEvents.exit, said);
    case "stdout":
    case "stderr": {
      const { data } = checked(ExecEvents[type], said);
      if (!base64Text.test(data)) throw new Unreadable("it has output that is no base64");
      return { type: "output", stream: type, data: Buffer.from(data, "base64") };
    }
    default:
      return undefined;
  }
}

/** A stream that stands still is kept open by such lines. */
function isBlank(line: Buffer): boolean {
  return line.every((byte) => byte === 0x20 || byte === 0x0d || byte === 0x09);
}

const TypeOnly = Type.Object({ type: Type.String() });
