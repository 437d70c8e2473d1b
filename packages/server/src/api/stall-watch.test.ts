import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import net from "node:net";
import { expect, test } from "vitest";
import { endUnlessTaken } from "./stall-watch.ts";

const afterMs = 150;

async function serve(answer: (response: ServerResponse) => void) {
  const server = createServer((_request, response) => {
    endUnlessTaken(response, { afterMs });
    answer(response);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const connected = once(server, "connection") as Promise<[net.Socket]>;
  const client = net
    .connect((server.address() as net.AddressInfo).port, "127.0.0.1")
    .on("error", () => undefined);
  client.pause();
  client.write("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
  const [socket] = await connected;
  return {
    client,
    socket,
    [Symbol.dispose]: () => {
      client.destroy();
      server.close();
    },
  };
}

const large = Buffer.alloc(32 * 1024 * 1024);
const closed = (socket: net.Socket) => new Promise<void>((resolve) => socket.once("close", () => resolve()));

test("an answer of which nothing is taken ends its connection, whatever its client sends meanwhile", async () => {
  using served = await serve((response) => void response.end(large));
  const timer = setInterval(() => served.client.write("x"), 20);
  await closed(served.socket);
  clearInterval(timer);
});

test("one large piece that is taken slowly goes out whole", { timeout: 20_000 }, async () => {
  using served = await serve((response) => void response.end(large));
  const startedMs = performance.now();
  let taken = 0;
  while (taken < large.length) {
    const piece = served.client.read(2 * 1024 * 1024) ?? served.client.read();
    taken += piece?.length ?? 0;
    await new Promise((resolve) => setTimeout(resolve, 40));
    expect(served.socket.destroyed).toBe(false);
  }
  expect(performance.now() - startedMs).toBeGreaterThan(3 * afterMs);
});

test("an answer that is begun and has nothing to send yet is left alone", async () => {
  using served = await serve((response) => void response.write("first"));
  await new Promise((resolve) => setTimeout(resolve, 4 * afterMs));
  expect(served.socket.destroyed).toBe(false);
});
