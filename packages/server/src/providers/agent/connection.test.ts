import { Duplex } from "node:stream";
import { expect, test } from "vitest";
import { FairTurns } from "../../platform/fair-turns.ts";
import { AgentConnection, type AgentFeatures } from "./connection.ts";
import { encodeJsonFrame, frameKinds } from "./frames.ts";

/** A socket of an agent that takes nothing before `takeAll`. */
class HeldSocket extends Duplex {
  taken = 0;
  #open = false;
  #held: (() => void) | undefined;

  override _read(): void {
    // The agent says nothing.
  }
  override _write(chunk: Buffer, _encoding: BufferEncoding, done: () => void): void {
    this.taken += chunk.length;
    if (this.#open) done();
    else this.#held = done;
  }
  takeAll(): void {
    this.#open = true;
    this.#held?.();
  }
}

const nothing = () => undefined;

function connectionOver(
  socket: Duplex,
  onWelcome: (features: AgentFeatures) => void = nothing,
): AgentConnection {
  return new AgentConnection({
    socket,
    name: "sb-1",
    turns: new FairTurns(),
    taker: { principal: "", owner: "sb-1" },
    rest: () => false,
    onWelcome,
    onIdle: nothing,
    onClosed: nothing,
  });
}

const turns = async (count: number) => {
  for (; count > 0; count--) await new Promise((resolve) => setImmediate(resolve));
};

test("what thousands of agents tell alike is there once, and what one tells otherwise is its own", async () => {
  const told: AgentFeatures[] = [];
  for (const features of [["exec", "later"], ["later", "exec"], ["exec"], ["exec", "more"]]) {
    const socket = new HeldSocket();
    connectionOver(socket, (seen) => told.push(seen));
    socket.push(encodeJsonFrame(frameKinds.welcome, { version: 1, agent: "1", features }));
    await turns(2);
    socket.destroy();
  }
  expect(told.map((seen) => [...seen])).toEqual([
    ["exec", "later"],
    ["exec", "later"],
    ["exec"],
    ["exec", "more"],
  ]);
  expect(told[1]).toBe(told[0]);
});

test.each([
  [1, 20_000, 20_000],
  [65_536, 100, 1_300_000],
])(
  "of pieces of %d bytes little waits for an agent that takes none, and all of them go when it does",
  async (bytes, count, mostBytes) => {
    const socket = new HeldSocket();
    const connection = connectionOver(socket);
    let sent = 0;
    const sending = (async () => {
      for (; sent < count; sent++) if (!connection.sendData(Buffer.alloc(bytes))) await connection.drained();
    })();
    await turns(5);
    expect(socket.writableLength).toBeLessThan(mostBytes);
    expect(sent).toBeLessThan(count);
    socket.takeAll();
    await sending;
    expect(socket.taken).toBeGreaterThan(bytes * count);
    socket.destroy();
  },
);

test("bytes that nobody else has are given back once all of them were written, and no earlier", async () => {
  const socket = new HeldSocket();
  const connection = connectionOver(socket);
  // The second goes in three frames.
  const pieces = [65_536, 2_500_000, 65_536].map((bytes) => Buffer.allocUnsafeSlow(bytes));
  for (const piece of pieces) connection.sendData(piece, { spends: true });
  const kept = Buffer.allocUnsafeSlow(65_536);
  connection.sendData(kept);
  const part = Buffer.allocUnsafeSlow(65_536).subarray(1);
  connection.sendData(part, { spends: true });
  await turns(5);
  expect(pieces.map((piece) => piece.length)).toEqual([65_536, 2_500_000, 65_536]);
  socket.takeAll();
  await turns(5);
  expect(pieces.map((piece) => piece.length)).toEqual([0, 0, 0]);
  expect([kept.length, part.length]).toEqual([65_536, 65_535]);
  socket.destroy();
});

test("bytes that were not written when the connection broke are not given back", async () => {
  const socket = new HeldSocket();
  const piece = Buffer.allocUnsafeSlow(65_536);
  connectionOver(socket).sendData(piece, { spends: true });
  socket.destroy();
  await turns(5);
  expect(piece.length).toBe(65_536);
});
