import { once } from "node:events";
import { expect, it, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { AgentClient } from "./agent-client.ts";
import { unixDialer } from "./dialers.ts";
import { type FakeConnection, fakeAgent } from "./fake-agent.ts";
import { frameKinds } from "./frames.ts";

const options = () => ({ signal: AbortSignal.timeout(20_000) });
const sent = Buffer.alloc(200_000, "what a program says ");

const say = (connection: FakeConnection) => {
  connection.raw(frameKinds.data, sent);
  connection.raw(frameKinds.eof, Buffer.alloc(0));
};

/** Dials a port that says `sent`, or does something else, to whoever says something. */
async function dialled(
  readerCopies: boolean,
  act: (connection: FakeConnection, bytes: Buffer) => void = say,
  answer = (connection: FakeConnection) => connection.frame(frameKinds.reply, {}),
) {
  await using begun = new AsyncDisposableStack();
  const agent = begun.use(
    await fakeAgent(
      (_request, connection) => answer(connection),
      (kind, bytes, connection) => {
        if (kind === frameKinds.data) act(connection, bytes);
      },
    ),
  );
  const dial = unixDialer(agent.path);
  const client = begun.use(
    new AgentClient({
      dial,
      token: "0".repeat(64),
      name: "sb-test",
      owner: "",
      logger: silentLogger,
    }),
  );
  const stream = await client.dialPort(80, options());
  stream.readerCopies = readerCopies;
  const all = begun.move();
  return {
    stream,
    async [Symbol.asyncDispose]() {
      stream.destroy();
      await all.disposeAsync();
    },
  };
}

it.each([true, false])(
  "a dialled port whose reader copies (%s) gives the memory of what it read back then",
  async (copies) => {
    await using port = await dialled(copies);
    const [given, copied] = [[], []] as [Buffer[], Buffer[]];
    port.stream.on("data", (piece: Buffer) => {
      given.push(piece);
      copied.push(Buffer.from(piece));
    });
    port.stream.write("go on");
    await once(port.stream, "end");
    expect(Buffer.concat(copied).equals(sent)).toBe(true);
    expect(given.every((piece) => piece.length > 0)).toBe(!copies);
  },
);

it("a dialled port whose reader copies keeps what nobody has read yet", async () => {
  await using port = await dialled(true);
  port.stream.write("go on");
  await vi.waitFor(() => expect(port.stream.readableLength).toBeGreaterThan(10_000));
  const read: Buffer[] = [];
  port.stream.on("data", (piece: Buffer) => read.push(Buffer.from(piece)));
  port.stream.resume();
  await once(port.stream, "end");
  expect(Buffer.concat(read).equals(sent)).toBe(true);
});

const piece = Buffer.from("the beginning");

it("what came before a dialled port broke is read first, and that it broke is told then", async () => {
  await using port = await dialled(false, (connection) => {
    connection.raw(frameKinds.data, piece);
    connection.socket.end();
  });
  const { stream } = port;
  stream.write("go on");
  await vi.waitFor(() => expect(stream.readableLength).toBe(piece.length));
  // It goes on being writable: what nobody takes is dropped.
  await vi.waitFor(async () => {
    await new Promise((resolve) => stream.write("more", resolve));
    expect([stream.destroyed, stream.readableLength]).toEqual([false, piece.length]);
  });
  const events: string[] = [];
  stream.on("end", () => events.push("end"));
  stream.on("error", (error) => events.push(error.message));
  stream.on("data", (bytes) => events.push(String(bytes)));
  await new Promise((resolve) => stream.once("close", resolve));
  expect(events).toEqual([String(piece), "the connection into the sandbox broke"]);
});

it("a dialled port that broke is there for as long as its reader holds something of it", async () => {
  await using port = await dialled(false, (connection) => connection.socket.end());
  const { stream } = port;
  let holds = true;
  stream.holds = () => holds;
  stream.resume();
  stream.write("go on");
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(stream.destroyed).toBe(false);
  holds = false;
  stream.read(0);
  await vi.waitFor(() => expect(stream.destroyed).toBe(true));
});

it("a dialled port that has ended is read to its end when its connection breaks behind that", async () => {
  await using port = await dialled(false, (connection) => {
    connection.raw(frameKinds.data, piece);
    connection.raw(frameKinds.eof, Buffer.alloc(0));
    connection.socket.end();
  });
  const { stream } = port;
  stream.write("go on");
  await once(stream, "readable");
  await new Promise((resolve) => stream.write("more", resolve));
  expect(String(Buffer.concat(await stream.toArray()))).toBe(String(piece));
  await vi.waitFor(() => expect(stream.destroyed).toBe(true));
});

it.each([
  ["io", "bad_gateway"],
  ["timeout", "gateway_timeout"],
  ["not_found", "not_found"],
])("a port that cannot be dialled (%s) is %s", async (told, code) => {
  const port = dialled(false, say, (connection) =>
    connection.frame(frameKinds.error, { code: told, message: "port 80 cannot be reached" }),
  );
  await expect(port).rejects.toMatchObject({
    code,
    message: expect.stringContaining("port 80 cannot be reached"),
  });
});

it.each([true, false])(
  "a dialled port whose writer gives its pieces away (%s) gives their memory back behind them",
  async (gives) => {
    const arrived: Buffer[] = [];
    await using port = await dialled(false, (_connection, bytes) => void arrived.push(Buffer.from(bytes)));
    port.stream.writerGives = gives;
    const pieces = Array.from({ length: 40 }, (_, at) => Buffer.allocUnsafeSlow(65_536).fill(at));
    // As what ends a chunk, which Node writes again and again.
    const end = Buffer.allocUnsafeSlow(2).fill("\r\n");
    const whole = Buffer.concat([...pieces, end]);
    for (const piece of [...pieces, end]) port.stream.write(piece);
    await vi.waitFor(() => expect(arrived).toHaveLength(pieces.length + 1));
    expect(Buffer.concat(arrived).equals(whole)).toBe(true);
    await vi.waitFor(() => expect(pieces.every((piece) => piece.length === (gives ? 0 : 65_536))).toBe(true));
    expect(String(end)).toBe("\r\n");
  },
);
