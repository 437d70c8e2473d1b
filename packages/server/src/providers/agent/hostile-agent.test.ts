import { setTimeout as sleep } from "node:timers/promises";
import { expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { heldBytes } from "../../platform/testing/held-memory.ts";
import { type ExecEvent, type ExecView, ProviderError } from "../../ports/index.ts";
import { AgentClient } from "./agent-client.ts";
import { unixDialer } from "./dialers.ts";
import { execId, exit, type FakeAgent, type FakeConnection, fakeAgent, spec } from "./fake-agent.ts";
import { frameKinds } from "./frames.ts";

/** An agent that was taken over says what it likes. It ends its own connection with that, and nothing else. */

const mib = 1_048_576;
const options = () => ({ signal: AbortSignal.timeout(20_000) });

function clientOf(agent: FakeAgent): AgentClient {
  const dial = unixDialer(agent.path);
  return new AgentClient({ dial, token: "0".repeat(64), name: "sb-test", owner: "", logger: silentLogger });
}

/** An agent that follows a start with what `after` sends. */
function agentThat(after: (connection: FakeConnection) => void): Promise<FakeAgent> {
  return fakeAgent(
    (_request, connection) => {
      connection.frame(frameKinds.reply, { pid: 7 });
      after(connection);
    },
    () => undefined,
    ["output_ack"],
  );
}

async function read(view: ExecView): Promise<string[]> {
  const told: ExecEvent[] = [];
  for await (const event of view.events) told.push(event);
  return told.map((event) => (event.type === "exit" ? "exit" : String(event.data)));
}

const stdout = (connection: FakeConnection, text: string, offset: number | bigint) =>
  connection.raw(frameKinds.stdout, Buffer.from(text), offset);

it.each<[string, (connection: FakeConnection) => void, string[]]>([
  [
    "output near 2^64",
    (connection) => {
      stdout(connection, "a", 2n ** 64n - 65_536n);
      setImmediate(() => stdout(connection, "b".repeat(2_048), 2n ** 64n - 2_048n));
    },
    [],
  ],
  ["output that ends where numbers are no longer whole", (agent) => stdout(agent, "a", 2n ** 53n - 1n), []],
  [
    "output that was there already",
    (agent) => {
      stdout(agent, "abc", 5);
      stdout(agent, "d", 7);
    },
    ["abc"],
  ],
  [
    "output after the exit",
    (agent) => {
      agent.frame(frameKinds.event, exit);
      stdout(agent, "late", 0);
    },
    ["exit"],
  ],
  [
    "a second exit",
    (agent) => {
      for (let count = 0; count < 1_000; count += 1) agent.frame(frameKinds.event, exit);
    },
    ["exit"],
  ],
])("%s ends the connection it comes on", async (_what, after, told) => {
  await using agent = await agentThat(after);
  await using client = clientOf(agent);
  await using view = await client.execs.start(spec, options());
  expect(await read(view)).toEqual(told);
  await expect.poll(() => agent.open, { timeout: 10_000 }).toBe(0);
  // What would have been acknowledged is, by then.
  await sleep(20);
});

it("acknowledgements of the largest offset there is are sent", async () => {
  const largest = Number.MAX_SAFE_INTEGER - 2 * 1024 * 1024;
  const acks: bigint[] = [];
  await using agent = await fakeAgent(
    (_request, connection) => {
      connection.frame(frameKinds.reply, { pid: 7 });
      stdout(connection, "abc", largest);
    },
    (kind, payload, connection) => {
      if (kind !== frameKinds.ack) return;
      acks.push(payload.readBigUInt64BE());
      connection.frame(frameKinds.event, exit);
      connection.end();
    },
    ["output_ack"],
  );
  await using client = clientOf(agent);
  await using view = await client.execs.start(spec, options());
  expect(await read(view)).toEqual(["abc", "exit"]);
  expect(acks).toEqual([BigInt(largest + 3)]);
});

it.each(["1e999", "-1", "9007199254740992", "1e300", '"1"', "null"])(
  "a duration or an offset of %s is no number",
  async (number) => {
    await using agent = await agentThat((connection) => {
      const text = JSON.stringify(exit).replace('"output_bytes":2', `"output_bytes":${number}`);
      connection.text(frameKinds.event, text);
    });
    await using client = clientOf(agent);
    await using view = await client.execs.start(spec, options());
    expect(await read(view)).toEqual([]);
    await expect.poll(() => agent.open, { timeout: 10_000 }).toBe(0);
  },
);

it("times that no timestamp can tell become the nearest that one can", async () => {
  await using agent = await fakeAgent((_request, connection) =>
    connection.answer({
      ...exit,
      pid: 7,
      command: "true",
      args: [],
      first_offset: 0,
      state: "exited",
      started_at: Number.MAX_SAFE_INTEGER,
      ended_at: Number.MAX_SAFE_INTEGER,
    }),
  );
  await using client = clientOf(agent);
  const info = await client.execs.get(execId, options());
  expect(() => [info.startedAt.toISOString(), info.exit?.endedAt.toISOString()]).not.toThrow();
});

it("files have any time and any size", async () => {
  const entry = { name: "a", path: "/a", type: "file", mode: 0o644, uid: 0, gid: 0 };
  await using agent = await fakeAgent((_request, connection) =>
    connection.answer({ ...entry, size: 2 ** 63, mtime_ms: -8_640_000_000_000_000 }),
  );
  await using client = clientOf(agent);
  const told = await client.files.stat("/a", options());
  expect(told.size).toBe(Number.MAX_SAFE_INTEGER);
  expect(told.modifiedAt.getTime()).toBeLessThan(0);
});

it.each<[string, (connection: FakeConnection) => void]>([
  [
    "data after the end of it",
    (connection) => {
      connection.socket.cork();
      connection.frame(frameKinds.reply, {});
      connection.raw(frameKinds.eof, Buffer.alloc(0));
      connection.raw(frameKinds.data, Buffer.from("late"));
      connection.socket.uncork();
    },
  ],
  [
    "a failure with the answer",
    (connection) => {
      connection.socket.cork();
      connection.frame(frameKinds.reply, {});
      connection.frame(frameKinds.error, { code: "io", message: "no more" });
      connection.socket.uncork();
    },
  ],
])(
  "a dialled port with %s is over for who dialled, also when that one listens late",
  async (_what, answer) => {
    await using agent = await fakeAgent((_request, connection) => answer(connection));
    await using client = clientOf(agent);
    const stream = await client.dialPort(80, options());
    await sleep(20);
    // What came before an end is given first.
    const given = await stream.toArray().catch(() => []);
    expect(given).toEqual([]);
    await expect.poll(() => stream.destroyed).toBe(true);
  },
);

it("a long message of an agent is cut", async () => {
  await using agent = await fakeAgent((_request, connection) =>
    connection.frame(frameKinds.error, { code: "io", message: "x".repeat(1_000_000) }),
  );
  await using client = clientOf(agent);
  const failure = await client.execs.get(execId, options()).catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(ProviderError);
  expect(String(failure).length).toBeLessThan(10_000);
});

/** A command as a list tells it. */
const record = (index: number, more: object = {}) => ({
  exec_id: `ex-${String(index).padStart(8, "0")}`,
  pid: 1,
  state: "running",
  command: "c",
  args: [],
  started_at: 1,
  output_bytes: 0,
  first_offset: 0,
  ...more,
});

it.each([0, 100])("a list of commands without an end, %i at a time, is refused", async (each) => {
  let batches = 0;
  await using agent = await fakeAgent((_request, connection) => {
    batches += 1;
    connection.answer({
      execs: Array.from({ length: each }, (_, index) => record(batches * each + index)),
      next: batches,
    });
  });
  await using client = clientOf(agent);
  await expect(client.execs.list(options())).rejects.toThrow("more commands than it can have");
  expect(batches).toBeLessThan(300);
});

it("of command lines a list holds the beginning, and less of many, as long as they are told in JSON", async () => {
  const long = "\x01".repeat(8_000);
  await using agent = await fakeAgent((request, connection) => {
    const batch = Number(request.after ?? 0);
    const execs =
      batch === 0
        ? [
            record(1, { command: "c".repeat(1_000_000) }),
            record(2, { args: Array.from({ length: 100_000 }, () => "") }),
            record(3, { args: ["a", "b".repeat(1_000_000), "c"], tag: "t".repeat(1_000_000) }),
          ]
        : Array.from({ length: 60 }, (_, index) => record(batch * 100 + index, { command: long }));
    connection.answer({ execs, ...(batch < 10 ? { next: batch + 1 } : {}) });
  });
  await using client = clientOf(agent);
  const execs = await client.execs.list(options());
  expect(execs).toHaveLength(603);
  const lengths = execs.map(({ command, args }) =>
    args.reduce((sum, arg) => sum + arg.length + 24, command.length),
  );
  expect(Math.max(...lengths)).toBeLessThan(4_200);
  expect(JSON.stringify(execs.map(({ command, args }) => [command, args])).length).toBeLessThan(
    9 * 1024 * 1024,
  );
  expect(execs[2]?.args.map((arg) => [arg[0], arg.length < 4_200])).toEqual([
    ["a", true],
    ["b", true],
  ]);
  expect(execs[2]?.tag?.length).toBeLessThan(10_000);
  expect([execs[3]?.command, execs.at(-1)?.command]).toEqual([
    `${long.slice(0, 4_096)}…`,
    `${long.slice(0, 256)}…`,
  ]);
});

it("commands are listed once at a time, and who leaves meanwhile is not waited for", async () => {
  const waiting: FakeConnection[] = [];
  await using agent = await fakeAgent((_request, connection) => waiting.push(connection));
  await using client = clientOf(agent);
  const first = client.execs.list(options());
  const left = new AbortController();
  const second = client.execs.list({ signal: left.signal });
  const third = client.execs.list(options());
  await expect.poll(() => waiting.length, { timeout: 10_000 }).toBe(1);
  left.abort(new Error("left"));
  await expect(second).rejects.toThrow("left");
  waiting[0]?.answer({ execs: [] });
  await first;
  await expect.poll(() => waiting.length, { timeout: 10_000 }).toBe(2);
  waiting[1]?.answer({ execs: [] });
  expect(await third).toEqual([]);
});

it("of output that waits for its reader, what it came between is not kept", async () => {
  const between = Buffer.alloc(60_000, " ");
  between.set(Buffer.from('{"event":"input","taken":0'));
  between[between.length - 1] = 0x7d;
  const sent = Promise.withResolvers<void>();
  await using agent = await agentThat((connection) => {
    for (let offset = 0; offset < 400; offset += 1) {
      stdout(connection, "a", offset);
      connection.text(frameKinds.event, String(between));
    }
    connection.socket.once("drain", () => sent.resolve());
  });
  await using client = clientOf(agent);
  const before = await heldBytes();
  await using _view = await client.execs.start(spec, options());
  await sent.promise;
  expect((await heldBytes()) - before).toBeLessThan(8 * mib);
});

it("of a file that comes a byte at a time, no more waits for its reader than its bytes", async () => {
  const info = { name: "f", path: "/f", type: "file", size: 1, mode: 0o644, uid: 0, gid: 0, mtime_ms: 0 };
  const one = Buffer.from([0, 0, 0, 1, frameKinds.data, 0x61]);
  const bytes = Buffer.concat(Array<Buffer>(50_000).fill(one));
  const sent = Promise.withResolvers<void>();
  await using agent = await fakeAgent((_request, connection) => {
    connection.frame(frameKinds.reply, { info });
    for (let count = 0; count < 10; count += 1) connection.socket.write(bytes);
    connection.socket.once("drain", () => sent.resolve());
  });
  await using client = clientOf(agent);
  const before = await heldBytes();
  const { body } = await client.files.read("/f", options());
  await sent.promise;
  await expect.poll(() => body.readableLength).toBeGreaterThan(400_000);
  expect((await heldBytes()) - before).toBeLessThan(4 * mib);
  body.destroy();
});

it("a transfer that ends without a reply is a failure of the agent's", async () => {
  await using agent = await fakeAgent((_request, connection) => connection.end());
  await using client = clientOf(agent);
  const source = async function* () {
    yield Buffer.from("a");
  };
  await expect(client.files.read("/f", options())).rejects.toThrow(ProviderError);
  await expect(client.files.write("/f", source(), options())).rejects.toThrow(ProviderError);
});
