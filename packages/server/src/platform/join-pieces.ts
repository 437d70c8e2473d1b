import type { Readable } from "node:stream";
import { PieceJoiner } from "./piece-joiner.ts";

/**
 * Makes what waits in a stream of Node's own, an answer or a socket, wait in few pieces: as `JoinedReadable`, for what is not
 * ours to make. To be called before anything is read from it.
 */
export function joinPieces(stream: Readable & { complete?: boolean }): void {
  const push = stream.push.bind(stream);
  const read = stream.read.bind(stream);
  let began = false;
  let joiner: PieceJoiner | undefined;
  const goOn = () => {
    // What follows a complete answer is another's.
    if (stream.complete || stream.destroyed || stream.readableLength >= stream.readableHighWaterMark) return;
    // Makes the connection be read.
    stream._read(0);
  };
  stream.push = (piece: Buffer | null) => {
    if (piece === null) {
      joiner?.flush();
      return push(null);
    }
    // Mostly there is no other.
    if (!began) {
      began = true;
      return push(piece);
    }
    joiner ??= new PieceJoiner({ pass: push, isEmpty: () => stream.readableLength === 0, goOn });
    return joiner.add(piece);
  };
  stream.read = (size?: number) => {
    // Nothing is taken by looking whether there is something.
    if (size !== 0) joiner?.flush();
    return read(size);
  };
}
