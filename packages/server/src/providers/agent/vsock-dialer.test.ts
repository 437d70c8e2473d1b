import { once } from "node:events";
import { mkdtemp, rename, rm } from "node:fs/promises";
import { createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { afterEach, beforeEach, expect, it } from "vitest";
import { Unavailable } from "../../ports/errors.ts";
import { unixDialer } from "./dialers.ts";
import { pinnedVsockDialer, vsockDialer } from "./vsock-dialer.ts";

let folder: string;
let server: Server | undefined;
const sockets = new Set<Socket>();
const options = () => ({ signal: AbortSignal.timeout(5_000) });

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "alcove-vsock-"));
});
afterEach(async () => {
  for (const socket of sockets) socket.destroy();
  await new Promise((resolve) => (server === undefined ? resolve(0) : server.close(resolve)));
  server = undefined;
  await rm(folder, { recursive: true });
});

/** A monitor that does as told with what it was asked. */
async function monitor(answer: (socket: Socket, asked: string) => void, name = "v.sock") {
  const path = join(folder, name);
  server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => undefined).on("close", () => sockets.delete(socket));
    socket.once("data", (asked) => answer(socket, String(asked)));
  });
  await new Promise<void>((resolve) => server?.listen(path, resolve));
  return path;
}

async function rest(socket: Duplex): Promise<string> {
  let text = "";
  for await (const part of socket) text += String(part);
  return text;
}

it("asks for the port and gives every byte behind the answer to whoever reads", async () => {
  const asked: string[] = [];
  const path = await monitor((socket, line) => {
    asked.push(line);
    socket.write("OK 1073741824\nfirst ");
    setTimeout(() => socket.end("second\nthird"), 50);
  });
  const socket = await vsockDialer(unixDialer(path), 1024)(options());
  expect(asked).toEqual(["CONNECT 1024\n"]);
  expect(await rest(socket)).toBe("first second\nthird");
});

it("takes an answer that comes byte by byte, and gives the connection to a listener for data that comes late", async () => {
  const path = await monitor((socket) => {
    const bytes = [..."OK 12\nhello"];
    const next = () => {
      const byte = bytes.shift();
      if (byte === undefined) return socket.end();
      socket.write(byte, () => setImmediate(next));
    };
    next();
  });
  const socket = await vsockDialer(unixDialer(path), 7)(options());
  await new Promise((resolve) => setTimeout(resolve, 30));
  let text = "";
  socket.on("data", (part) => {
    text += String(part);
  });
  await once(socket, "end");
  expect(text).toBe("hello");
});

it("what the caller sends at once reaches the guest behind the request", async () => {
  const got = Promise.withResolvers<string>();
  const path = await monitor((socket) => {
    socket.write("OK 5\n");
    socket.once("data", (part) => got.resolve(String(part)));
  });
  const socket = await vsockDialer(unixDialer(path), 7)(options());
  socket.write("hello");
  expect(await got.promise).toBe("hello");
  socket.destroy();
});

for (const [what, answer, message] of [
  ["that is closed", (socket: Socket) => socket.end(), /nothing listens there/],
  ["that is closed within the answer", (socket: Socket) => socket.end("OK 1"), /nothing listens there/],
  ["that is dropped", (socket: Socket) => socket.destroy(), /its port 1024/],
  [
    "that is answered otherwise",
    (socket: Socket) => socket.write("HTTP/1.1 400\n"),
    /answered "HTTP\/1.1 400"/,
  ],
  ["whose answer has no number", (socket: Socket) => socket.write("OK \nrest"), /answered "OK "/],
  [
    "whose answer does not end",
    (socket: Socket) => socket.write("OK ".padEnd(100_000, "1")),
    /answered "OK 1+…"/,
  ],
  ["whose answer is long", (socket: Socket) => socket.write(`OK ${"1".repeat(100)}\n`), /answered "OK 1+…"/],
] as const)
  it(`a connection ${what} is refused as unavailable, and closed`, async () => {
    const path = await monitor(answer);
    const dialled = vsockDialer(unixDialer(path), 1024)(options());
    await expect(dialled).rejects.toThrow(Unavailable);
    await expect(dialled).rejects.toThrow(message);
    await expect.poll(() => sockets.size).toBe(0);
  });

for (const [what, answer] of [
  ["nothing", () => undefined],
  ["half a line", (socket: Socket) => socket.write("OK 10")],
] as const)
  it(`a monitor that answers ${what} is given up after its time, and the connection closed`, async () => {
    const path = await monitor(answer);
    const dialled = vsockDialer(unixDialer(path), 1024, { answerMs: 100 })(options());
    await expect(dialled).rejects.toThrow(/did not answer CONNECT 1024 within 100 ms/);
    await expect(dialled).rejects.toThrow(Unavailable);
    await expect.poll(() => sockets.size).toBe(0);
  });

it("a caller that leaves gets its own reason, and nothing stays open", async () => {
  const path = await monitor(() => undefined);
  const leaving = new AbortController();
  const dialled = vsockDialer(unixDialer(path), 1024)({ signal: leaving.signal });
  await expect.poll(() => sockets.size).toBe(1);
  leaving.abort(new Error("left"));
  await expect(dialled).rejects.toThrow("left");
  await expect.poll(() => sockets.size).toBe(0);
});

it("a pinned dialer keeps to the monitor it found, whatever takes its name", async () => {
  const path = await monitor((socket) => socket.end("OK 1\nthe machine"));
  const pinned = await pinnedVsockDialer(path, 1024);
  const first = server;
  await monitor((socket) => socket.end("OK 1\nimpostor"), "other.sock");
  await rename(join(folder, "other.sock"), path);
  expect(await rest(await pinned.dial(options()))).toBe("the machine");
  await pinned.close();
  await new Promise((resolve) => first?.close(resolve));
});
