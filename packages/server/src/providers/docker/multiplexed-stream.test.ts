import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { connect, createServer, type Socket } from "node:net";
import { text } from "node:stream/consumers";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { ContainerStdio, Demultiplexer, stderrStream, stdoutStream } from "./multiplexed-stream.ts";

function frame(stream: number, data: string | Buffer): Buffer {
  const payload = Buffer.from(data);
  const header = Buffer.alloc(8);
  header.writeUInt8(stream, 0);
  header.writeUInt32BE(payload.length, 4);
  return Buffer.concat([header, payload]);
}

describe("Demultiplexer", () => {
  it("gives every stream its bytes, however the chunks are cut", () => {
    const frames = fc.array(
      fc.record({ stream: fc.constantFrom(1, 2), data: fc.uint8Array({ maxLength: 40 }) }),
    );
    fc.assert(
      fc.property(frames, fc.array(fc.integer({ min: 1, max: 20 }), { minLength: 1 }), (sent, cuts) => {
        const whole = Buffer.concat(sent.map(({ stream, data }) => frame(stream, Buffer.from(data))));
        const got: Record<number, Buffer[]> = { 1: [], 2: [] };
        const demultiplexer = new Demultiplexer((stream, data) => got[stream]?.push(data));
        for (let at = 0, turn = 0; at < whole.length; turn++) {
          const length = cuts[turn % cuts.length] ?? 1;
          demultiplexer.push(whole.subarray(at, at + length));
          at += length;
        }
        for (const stream of [1, 2]) {
          const expected = sent
            .filter((part) => part.stream === stream)
            .map((part) => Buffer.from(part.data));
          expect(Buffer.concat(got[stream] ?? [])).toEqual(Buffer.concat(expected));
        }
      }),
    );
  });
});

describe("ContainerStdio", () => {
  const server = createServer();
  let engine: Socket;
  let socket: Socket;
  const complaints: string[] = [];

  beforeEach(async () => {
    complaints.length = 0;
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const accepted = once(server, "connection");
    socket = connect((server.address() as AddressInfo).port, "127.0.0.1");
    [engine] = await accepted;
  });
  afterEach(async () => {
    engine.destroy();
    socket.destroy();
    server.close();
    await once(server, "close");
  });
  const open = (head: Buffer = Buffer.alloc(0)) =>
    new ContainerStdio({
      socket,
      head,
      onStderr: (data) => complaints.push(data.toString()),
      onForeign: (said) => new Error(`foreign: ${said}`),
      onEarlyEnd: () => new Error("early end"),
    });

  it("hands out standard output whole although the engine closes at once, and standard error apart", async () => {
    const stdio = open(frame(stdoutStream, Buffer.from([0, 0, 0, 1])));
    engine.write(frame(stderrStream, "oh"));
    engine.end(frame(stdoutStream, "x".repeat(300_000)));
    expect((await text(stdio)).length).toBe(300_004);
    expect(complaints.join("")).toBe("oh");
  });

  it("sends what is written and closes the program's standard input at the end", async () => {
    const stdio = open();
    stdio.on("error", () => undefined);
    stdio.end("typed");
    expect(await text(engine)).toBe("typed");
    stdio.destroy();
  });

  it("fails with the engine's own words where output should be", async () => {
    const stdio = open();
    engine.end(frame(stdoutStream, "OCI runtime exec failed: no"));
    await expect(text(stdio)).rejects.toThrow("foreign: OCI runtime exec failed: no");
  });

  it("fails when the program ends without a byte", async () => {
    const stdio = open();
    engine.end();
    await expect(text(stdio)).rejects.toThrow("early end");
  });
});
