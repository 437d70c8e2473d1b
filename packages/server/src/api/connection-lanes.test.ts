import { once } from "node:events";
import { createServer } from "node:http";
import net from "node:net";
import { expect, test, vi } from "vitest";
import { ConnectionLanes } from "./connection-lanes.ts";

const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

async function serve(options: { stalledMs: number }, body: Buffer) {
  const lanes = new ConnectionLanes((_request, response) => void response.end(body), options);
  const server = createServer(lanes.take).listen(0, "127.0.0.1");
  await once(server, "listening");
  const socket = net
    .connect((server.address() as net.AddressInfo).port, "127.0.0.1")
    .on("error", () => undefined);
  return {
    server,
    socket,
    [Symbol.dispose]: () => {
      socket.destroy();
      server.close();
    },
  };
}

test("an answer that nobody takes ends the connection while requests wait behind it", async () => {
  using served = await serve({ stalledMs: 50 }, Buffer.alloc(16 * 1024 * 1024));
  const closed = once(served.server, "connection").then(
    ([socket]) => new Promise((resolve) => socket.on("error", () => undefined).once("close", resolve)),
  );
  served.socket.pause();
  served.socket.write(get.repeat(3));
  await closed;
});

test("an answer that is taken slowly ends no connection, and those behind it are answered", async () => {
  const body = Buffer.alloc(8 * 1024 * 1024);
  using served = await serve({ stalledMs: 100 }, body);
  served.socket.write(get.repeat(2));
  let taken = 0;
  while (taken < 2 * body.length) {
    taken += (served.socket.read(1024 * 1024) ?? served.socket.read() ?? { length: 0 }).length;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  expect(served.socket.destroyed).toBe(false);
});

test("who leaves while requests wait leaves no timer behind", async () => {
  const [set, clear] = [vi.spyOn(globalThis, "setInterval"), vi.spyOn(globalThis, "clearInterval")];
  try {
    using served = await serve({ stalledMs: 60_000 }, Buffer.alloc(16 * 1024 * 1024));
    const closed = once(served.server, "connection").then(
      ([socket]) => new Promise((resolve) => socket.on("error", () => undefined).once("close", resolve)),
    );
    served.socket.pause();
    served.socket.write(get.repeat(3));
    await vi.waitFor(() => expect(set).toHaveBeenCalled());
    served.socket.destroy();
    await closed;
    const ended = new Set(clear.mock.calls.map(([timer]) => timer));
    for (const { value } of set.mock.results) expect(ended).toContain(value);
  } finally {
    set.mockRestore();
    clear.mockRestore();
  }
});
