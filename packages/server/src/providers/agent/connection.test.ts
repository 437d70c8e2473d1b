import { Duplex } from "node:stream";
import { expect, test } from "vitest";
import { AgentConnection } from "./connection.ts";

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

test.each([
  [1, 20_000, 20_000],
  [65_536, 100, 1_300_000],
])(
  "of pieces of %d bytes little waits for an agent that takes none, and all of them go when it does",
  async (bytes, count, mostBytes) => {
    const socket = new HeldSocket();
    const connection = new AgentConnection({
      socket,
      name: "sb-1",
      onWelcome: nothing,
      onIdle: nothing,
      onClosed: nothing,
    });
    let sent = 0;
    const sending = (async () => {
      for (; sent < count; sent++) if (!connection.sendData(Buffer.alloc(bytes))) await connection.drained();
    })();
    for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
    expect(socket.writableLength).toBeLessThan(mostBytes);
    expect(sent).toBeLessThan(count);
    socket.takeAll();
    await sending;
    expect(socket.taken).toBeGreaterThan(bytes * count);
    socket.destroy();
  },
);
