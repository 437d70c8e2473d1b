import { bytesOf } from "@alcove/sdk";
import { exitCodes } from "../exit-codes.ts";

/** Follows the offsets of a command's output, across connections, and says on standard error what of it is missing. */
export class OutputProgress {
  /** Offset of the first byte not yet seen. */
  next: number;
  #lostBytes = 0;

  constructor(from = 0) {
    this.next = from;
  }

  get lostBytes(): number {
    return this.#lostBytes;
  }

  /** @returns the bytes of a piece of output. */
  take(piece: {
    data: string;
    encoding?: "base64";
    offset?: number;
    notice?: true;
    lost_bytes?: number;
  }): Buffer {
    const bytes = bytesOf(piece);
    if (piece.notice === true) return bytes;
    const offset = piece.offset ?? this.next;
    // A service that does not tell of gaps tells offsets.
    this.#miss(piece.lost_bytes ?? offset - this.next);
    this.next = offset + bytes.length;
    return bytes;
  }

  end(exit: { lost_bytes?: number }): void {
    this.#miss(exit.lost_bytes ?? 0);
  }

  /** @returns the exit code for this process: a command's own says nothing when its output has a gap. */
  exitCode(ofCommand: number): number {
    return this.#lostBytes > 0 ? exitCodes.execFailed : ofCommand;
  }

  #miss(bytes: number): void {
    if (bytes <= 0) return;
    this.#lostBytes += bytes;
    process.stderr.write(`alcove: ${bytes} bytes of the command's output are missing here: they are lost\n`);
  }
}
