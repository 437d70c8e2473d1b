import { once } from "node:events";
import net from "node:net";
import { Readable, Writable } from "node:stream";
import { expect, test } from "vitest";
import { carry, carryAll } from "./carry.ts";
import { joinPieces } from "./join-pieces.ts";
import { JoinedReadable } from "./joined-readable.ts";

const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Takes nothing before `open` is called. */
class Gate extends Writable {
  readonly taken: Buffer[] = [];
  writes = 0;
  #opened = false;
  #held: (() => void) | undefined;

  constructor() {
    super({ highWaterMark: 262_144 });
  }
  override write(chunk: Buffer, ...rest: never[]): boolean {
    this.writes += 1;
    return super.write(chunk, ...rest);
  }
  override _write(chunk: Buffer, _encoding: BufferEncoding, done: () => void): void {
    this.taken.push(chunk);
    if (this.#opened) done();
    else this.#held = done;
  }
  open(): void {
    this.#opened = true;
    this.#held?.();
  }
}

test("carry() gives a writable that takes nothing one small piece, and all of them once it does", async () => {
  const from = new JoinedReadable({ highWaterMark: 65_536, goOn: () => undefined });
  const to = new Gate();
  carry(from, to);
  for (let count = 0; count < 500; count++) {
    from.give(Buffer.from([count & 0xff]));
    await turn();
  }
  expect([to.writes, to.writableLength]).toEqual([1, 1]);
  from.finish();
  to.open();
  await once(to, "finish");
  expect(Buffer.concat(to.taken)).toEqual(Buffer.from(Array.from({ length: 500 }, (_, at) => at & 0xff)));
  expect(to.taken.length).toBeLessThan(10);
});

test("carry() waits for room after large pieces, and stops when it is told to", async () => {
  const to = new Gate();
  const from = new Readable({ highWaterMark: 100_000, read: () => from.push(Buffer.alloc(100_000)) });
  const stop = carry(from, to);
  await turn();
  expect(to.writableLength).toBe(300_000);
  stop();
  to.open();
  await turn();
  await turn();
  expect(to.writes).toBe(3);
  from.destroy();
});

test("carry() spends what was written, when it is asked to, and nothing that still waits", async () => {
  const pieces = Array.from({ length: 3 }, () => Buffer.allocUnsafeSlow(65_536));
  const from = Readable.from(pieces);
  const to = new Gate();
  carry(from, to, { spends: true });
  await turn();
  expect(pieces.map((piece) => piece.length)).toEqual([65_536, 65_536, 65_536]);
  to.open();
  await once(to, "finish");
  expect(pieces.map((piece) => piece.length)).toEqual([0, 0, 0]);
});

test("carryAll() destroys both streams when either breaks, and tells of it", async () => {
  for (const breaks of ["from", "to"] as const) {
    const streams = { from: new Readable({ read: () => undefined }), to: new Gate() };
    const carried = carryAll(streams.from, streams.to, { signal: new AbortController().signal });
    streams[breaks].destroy(new Error("broken"));
    await expect(carried).rejects.toThrow("broken");
    expect([streams.from.destroyed, streams.to.destroyed]).toEqual([true, true]);
  }
});

test("joinPieces() holds what comes in small pieces in few", async () => {
  const from = new Readable({ highWaterMark: 65_536, read: () => undefined });
  let pieces = 0;
  const push = from.push.bind(from);
  from.push = (piece) => {
    pieces += 1;
    return push(piece);
  };
  joinPieces(from);
  for (let count = 0; count < 20_000; count++) from.push(Buffer.from("a"));
  from.push(null);
  expect(String(Buffer.concat(await from.toArray()))).toBe("a".repeat(20_000));
  expect(pieces).toBeLessThan(10);
});

test("joinPieces() goes on reading a socket that is full of small pieces, once somebody reads it", async () => {
  const server = net.createServer({ highWaterMark: 1_024 }, (socket) => {
    joinPieces(socket);
    socket.pipe(socket);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const client = net.connect((server.address() as net.AddressInfo).port, "127.0.0.1");
  let back = 0;
  client.on("data", (bytes) => {
    back += bytes.length;
  });
  for (let count = 0; count < 300; count++) {
    client.write("abcdefghij");
    if (count % 10 === 0) await turn();
  }
  client.end();
  await once(client, "end");
  expect(back).toBe(3_000);
  server.close();
});
