import { ByteBlocks } from "./byte-blocks.ts";

const newline = 0x0a;

/** A line is longer than it may be. */
export class TooLongLine extends Error {
  constructor(longestBytes: number) {
    super(`a line is longer than ${longestBytes} bytes`);
    this.name = "TooLongLine";
  }
}

/**
 * The lines of a stream as they come, without what ends them; a last one need not be ended. No more is held than one line and
 * what was read beside it: `readline` holds one of any length, and ends the process with one that no text can have.
 * @throws TooLongLine, and lets go of the source.
 */
export async function* linesOf(
  source: AsyncIterable<Uint8Array>,
  { longestBytes }: { longestBytes: number },
): AsyncGenerator<string> {
  const waiting = new ByteBlocks();
  const keep = (part: Uint8Array) => {
    if (waiting.bytes + part.length > longestBytes) throw new TooLongLine(longestBytes);
    waiting.add(part);
  };
  for await (const piece of source) {
    let from = 0;
    for (let end = piece.indexOf(newline); end >= 0; end = piece.indexOf(newline, from)) {
      keep(piece.subarray(from, end));
      from = end + 1;
      yield textOf(waiting.take());
    }
    keep(piece.subarray(from));
  }
  if (waiting.bytes > 0) yield textOf(waiting.take());
}

function textOf(line: Buffer): string {
  return line.toString("utf8").replace(/\r$/, "");
}
