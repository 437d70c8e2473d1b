import { once } from "node:events";
import { expect, it, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { AgentClient } from "./agent-client.ts";
import { unixDialer } from "./dialers.ts";
import { type FakeConnection, fakeAgent } from "./fake-agent.ts";
import { frameKinds } from "./frames.ts";

const options = () => ({ signal: AbortSignal.timeout(20_000) });
const sent = Buffer.alloc(200_000, "what a program says ");

/** Dials a port that says `sent` to whoever says something. */
async function dialled(readerCopies: boolean) {
  const say = (connection: FakeConnection) => {
    connection.raw(frameKinds.data, sent);
    connection.raw(frameKinds.eof, Buffer.alloc(0));
  };
  const agent = await fakeAgent(
    (_request, connection) => connection.frame(frameKinds.reply, {}),
    (kind, _bytes, connection) => {
      if (kind === frameKinds.data) say(connection);
    },
  );
  const dial = unixDialer(agent.path);
  const client = new AgentClient({
    dial,
    token: "0".repeat(64),
    name: "sb-test",
    owner: "",
    logger: silentLogger,
  });
  const stream = await client.dialPort(80, options());
  stream.readerCopies = readerCopies;
  return {
    stream,
    async [Symbol.asyncDispose]() {
      stream.destroy();
      await client[Symbol.asyncDispose]();
      await agent[Symbol.asyncDispose]();
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
