import { once } from "node:events";
import { createServer, type RequestListener, type ServerResponse } from "node:http";
import net from "node:net";
import { expect, test, vi } from "vitest";
import { ReadTurns } from "../platform/read-turns.ts";
import { ConnectionLanes } from "./connection-lanes.ts";

const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

const late = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n";
const unreadable = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";

async function serve(
  options: { stalledMs?: number; headMs?: number; mostCost?: number },
  answer: Buffer | RequestListener,
) {
  const turns = new ReadTurns();
  const lanes = new ConnectionLanes({ ...options, turns });
  const handle = Buffer.isBuffer(answer)
    ? (_: unknown, response: ServerResponse) => void response.end(answer)
    : (answer as RequestListener);
  const headersTimeout = options.headMs ?? 60_000;
  const server = createServer(
    { headersTimeout, requestTimeout: 0, connectionsCheckingInterval: 20 },
    lanes.inTurn(handle),
  );
  server.on("connection", (socket: net.Socket) => {
    const unused = () => undefined;
    socket.on("data", unused).off("data", unused);
    turns.pace(socket);
  });
  server.on("clientError", (error: NodeJS.ErrnoException, socket: net.Socket) => {
    if (error.code === "ERR_HTTP_REQUEST_TIMEOUT") lanes.endLate(socket, late);
    else if (error.code === "ECONNRESET") socket.destroy();
    else lanes.end(socket, unreadable);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const socket = net
    .connect((server.address() as net.AddressInfo).port, "127.0.0.1")
    .on("error", () => undefined);
  return {
    server,
    socket,
    lanes,
    turns,
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

/** Requests of more than is parsed while one is answered. */
const padded = (path: string) => `GET ${path} HTTP/1.1\r\nHost: a\r\nX-Pad: ${"x".repeat(5_000)}\r\n\r\n`;

/** Answers with the path, but "/slow" only when told to. */
async function serveSlow(options: { headMs?: number } = {}) {
  const slow = Promise.withResolvers<ServerResponse>();
  const served = await serve(options, (request, response) => {
    if (request.url === "/slow") slow.resolve(response);
    else response.end(request.url);
  });
  const client = { text: "", closed: new Promise((resolve) => served.socket.once("close", resolve)) };
  served.socket.on("data", (piece) => {
    client.text += piece.toString("latin1");
  });
  return { ...served, client, slow: slow.promise };
}

const answered = (text: string) => [...text.matchAll(/\r\n\r\n(\/[a-z0-9]+)/g)].map(([, path]) => path);
const later = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

test("a head that is kept from being parsed is not late, and all that was sent is answered", async () => {
  using served = await serveSlow({ headMs: 100 });
  const paths = Array.from({ length: 100 }, (_, at) => `/${at}`);
  served.socket.write(padded("/slow") + paths.map(padded).join(""));
  const response = await served.slow;
  await later(300);
  response.end("/slow");
  await vi.waitFor(() => expect(answered(served.client.text)).toEqual(["/slow", ...paths]));
  await later(300);
  expect(served.socket.destroyed).toBe(false);
});

test("a head that was kept from being parsed, and of which the rest is not sent, ends the connection all the same", async () => {
  using served = await serveSlow({ headMs: 100 });
  const paths = Array.from({ length: 33 }, (_, at) => `/${at}`);
  const bytes = paths.map(padded);
  served.socket.write(padded("/slow"));
  const response = await served.slow;
  // The last of these is the one above what is parsed, and has the beginning of a head behind it.
  for (const [from, to] of [
    [0, 1],
    [1, 25],
    [25, 33],
  ] as const) {
    await later(50);
    served.socket.write(bytes.slice(from, to).join("") + (to === 33 ? "GET /never HTTP/1.1\r\n" : ""));
  }
  await later(300);
  expect(served.client.text).toBe("");
  response.end("/slow");
  await served.client.closed;
  expect(answered(served.client.text)).toEqual(["/slow", ...paths]);
  expect(served.client.text.endsWith(late)).toBe(true);
});

test.each([
  ["no HTTP", "NO HTTP\r\n\r\n", unreadable],
  ["a head that is late", "GET /never HTTP/1.1\r\n", late],
  [
    "a body that is none",
    "POST /never HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    unreadable,
  ],
])("what is before %s is answered before the connection ends", async (_what, bytes, last) => {
  using served = await serveSlow({ headMs: 100 });
  served.socket.write(`${padded("/slow")}${get.replace("/", "/next")}${bytes}`);
  const response = await served.slow;
  await later(300);
  expect(served.client.text).toBe("");
  response.end("/slow");
  await served.client.closed;
  expect(answered(served.client.text)).toEqual(["/slow", "/next"]);
  expect(served.client.text.endsWith(last)).toBe(true);
});

test.each([
  ["many requests wait", get.repeat(2) + padded("/").repeat(60)],
  ["what cannot be read does", "NO HTTP\r\n\r\n"],
])("who leaves while %s is noticed", async (_what, bytes) => {
  using served = await serveSlow();
  served.socket.write(padded("/slow") + bytes);
  const response = await served.slow;
  await later(50);
  const closed = once(response, "close");
  served.socket.end();
  await closed;
  expect(response.writableFinished).toBe(false);
});

test("who goes on sending what is not wanted is cut off", async () => {
  using served = await serveSlow();
  served.socket.write(`${padded("/slow")}NO HTTP\r\n\r\n`);
  await served.slow;
  served.socket.write(Buffer.alloc(1_000_000));
  await served.client.closed;
});

test("a handshake whose head was late is not told so once it is another protocol's", async () => {
  let slow: ServerResponse | undefined;
  using served = await serve({ headMs: 300 }, (request, response) => {
    if (request.url === "/slow") slow = response;
    else response.end("x");
  });
  const { lanes, server, socket, turns } = served;
  server.on("upgrade", (request, upgraded: net.Socket) => {
    lanes.leave(request.socket);
    turns.release(upgraded);
    upgraded.write("HTTP/1.1 101 Switching Protocols\r\n\r\n");
  });
  let text = "";
  socket.on("data", (piece) => {
    text += piece;
  });
  const padded = (path: string) => `GET ${path} HTTP/1.1\r\nHost: a\r\nX: ${"x".repeat(8_000)}\r\n\r\n`;
  socket.write(`${padded("/slow")}${padded("/a").repeat(30)}GET /ws HTTP/1.1\r\nHost: a\r\n`);
  await new Promise((resolve) => setTimeout(resolve, 600));
  slow?.end("s");
  await new Promise((resolve) => setTimeout(resolve, 100));
  socket.write("Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
  await vi.waitFor(() => expect(text).toContain("101 Switching"), { timeout: 5_000 });
  await new Promise((resolve) => setTimeout(resolve, 600));
  expect(text).not.toContain("408");
});

test("what waits on many connections is bounded for all of them: one request on each, and what one read brings", async () => {
  const slow: ServerResponse[] = [];
  const mostCost = 190_000;
  using served = await serve({ mostCost }, (request, response) => {
    if (request.url === "/slow") slow.push(response);
    else response.end(`\r\n\r\n${request.url}`);
  });
  const { port } = served.server.address() as net.AddressInfo;
  // Each header costs several times its bytes.
  const one = (path: string) => `GET ${path} HTTP/1.1\r\nHost: a\r\n${"ab:cd\r\n".repeat(160)}\r\n`;
  const connect = () => {
    const socket = net.connect(port, "127.0.0.1").on("error", () => undefined);
    const client = { socket, text: "", closed: new Promise((resolve) => socket.once("close", resolve)) };
    socket.on("data", (piece) => {
      client.text += piece.toString("latin1");
    });
    socket.write(one("/slow"));
    return client;
  };
  const many = Array.from({ length: 20 }, connect);
  try {
    await vi.waitFor(() => expect(slow).toHaveLength(20));
    const [first] = many;
    first?.socket.write(one("/early").repeat(16));
    await vi.waitFor(() => expect(served.lanes.waitingCost).toBeGreaterThan(mostCost));
    const before = served.lanes.waitingCost;
    // Whose next request comes alone has it answered, whatever others do; who has sent many at once has none.
    for (const { socket } of many.slice(1, 10)) socket.write(one("/next"));
    for (const { socket } of many.slice(10)) socket.write(one("/next").repeat(64));
    await Promise.all(many.slice(10).map(({ closed }) => closed));
    await vi.waitFor(() => expect(served.lanes.waitingCost).toBeGreaterThan(before + 9 * 10_000));
    expect(served.lanes.waitingCost).toBeLessThan(before + 9 * 100_000);
    for (const response of slow) response.end("\r\n\r\n/slow");
    await vi.waitFor(() => {
      for (const { text } of many.slice(1, 10)) expect(answered(text)).toEqual(["/slow", "/next"]);
      expect(answered(first?.text ?? "")).toEqual(["/slow", ...Array(16).fill("/early")]);
    });
    expect(served.lanes.waitingCost).toBe(0);
  } finally {
    for (const { socket } of many) socket.destroy();
  }
});

test.each([
  ["leaves", (socket: net.Socket) => socket.destroy()],
  ["sends what cannot be read", (socket: net.Socket) => socket.write("NO HTTP\r\n\r\n")],
  ["sends too many", (socket: net.Socket) => socket.write(get.repeat(200))],
])("of what waited for a client that %s nothing is counted any more", async (_what, end) => {
  using served = await serveSlow();
  served.socket.write(padded("/slow") + get.repeat(20));
  const response = await served.slow;
  await vi.waitFor(() => expect(served.lanes.waitingCost).toBeGreaterThan(0));
  end(served.socket);
  await later(50);
  response.end("/slow");
  await served.client.closed;
  await vi.waitFor(() => expect(served.lanes.waitingCost).toBe(0));
});

test("of the body of a request that waits no more is parsed than came with its head, and all of it once it is begun", async () => {
  const length = 1_000_000;
  let slow: ServerResponse | undefined;
  let waited: number | undefined;
  using served = await serve({}, async (request, response) => {
    if (request.url === "/slow") slow = response;
    else {
      waited = request.readableLength;
      response.end(`\r\n\r\n/${Buffer.concat(await request.toArray()).length}`);
    }
  });
  let text = "";
  served.socket.on("data", (piece: Buffer) => {
    text += piece.toString("latin1");
  });
  served.socket.write(padded("/slow"));
  await vi.waitFor(() => expect(slow).toBeDefined());
  served.socket.write(`POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: ${length}\r\n\r\n`);
  served.socket.write(Buffer.alloc(length));
  await vi.waitFor(() => expect(served.lanes.waitingCost).toBeGreaterThan(300_000));
  await later(200);
  slow?.end("\r\n\r\n/slow");
  await vi.waitFor(() => expect(answered(text)).toEqual(["/slow", `/${length}`]));
  expect(waited).toBeLessThan(100_000);
  expect(served.lanes.waitingCost).toBe(0);
});
