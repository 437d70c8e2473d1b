import { setTimeout as sleep } from "node:timers/promises";
import { expect, it } from "vitest";
import { DeadlineExceeded } from "../../platform/deadline.ts";
import { silentLogger } from "../../platform/logger.ts";
import {
  BadRequest,
  Conflict,
  type ExecEvent,
  NotFound,
  ProviderError,
  RuntimeGone,
  TooLarge,
  Unavailable,
} from "../../ports/index.ts";
import { AgentClient } from "./agent-client.ts";
import { AgentChannel } from "./channel.ts";
import { unixDialer } from "./dialers.ts";
import type { CommandGroups } from "./exec-operations.ts";
import { execId, exit, type FakeAgent, fakeAgent, spec } from "./fake-agent.ts";
import { AgentFiles } from "./file-operations.ts";
import { encodeHeader, encodeJsonFrame, frameKinds } from "./frames.ts";
import { SharedTable } from "./places.ts";

const options = () => ({ signal: AbortSignal.timeout(5_000) });

function clientOf(
  agent: FakeAgent,
  parts: { groups?: CommandGroups | "own"; watches?: SharedTable; owner?: string } = {},
): AgentClient {
  const dial = unixDialer(agent.path);
  return new AgentClient({
    dial,
    token: "0".repeat(64),
    name: "sb-test",
    owner: "",
    logger: silentLogger,
    ...parts,
  });
}

it("one connection carries many operations, one after the other", async () => {
  await using agent = await fakeAgent((_request, connection) => connection.answer({ execs: [] }));
  await using client = clientOf(agent);
  for (let index = 0; index < 10; index += 1) await client.execs.list(options());
  expect(agent.connections).toBe(1);
  expect(agent.requests).toHaveLength(10);
});

it("watches in sandboxes that are one user to the kernel are shared between owners, and given back", async () => {
  await using agent = await fakeAgent((_request, connection) => connection.frame(frameKinds.reply, {}));
  const watches = new SharedTable({ what: "watches of files", most: 128 });
  const sandboxes = Array.from({ length: 9 }, () => clientOf(agent, { watches, owner: "mallory" }));
  const left = new AbortController();
  const held: AsyncIterator<unknown>[] = [];
  let refusal: unknown;
  for (const { files } of sandboxes) {
    for (let count = 0; count < 15; count += 1) {
      try {
        const changes = await files.watch("/tmp", { signal: left.signal, recursive: false });
        held.push(changes[Symbol.asyncIterator]());
      } catch (error) {
        refusal = error;
      }
    }
  }
  expect(held).toHaveLength(48);
  expect(refusal).toBeInstanceOf(Unavailable);
  expect(String(refusal)).toContain("of this owner have 48 watches of files, and all sandboxes 48 of 128");
  await using other = clientOf(agent, { watches, owner: "bob" });
  const ofBob = await other.files.watch("/tmp", { ...options(), recursive: false });
  await ofBob[Symbol.asyncIterator]().return?.();
  for (const changes of held) await changes.return?.();
  for (let count = 0; count < 48; count += 1) watches.take("bob");
  expect(() => watches.take("bob")).toThrow("have 48 watches of files, and all sandboxes 48 of 128");
  for (const client of sandboxes) await client[Symbol.asyncDispose]();
});

const info = { version: "1", agent: "1", pid: 7, uptime_ms: 1, execs_running: 0 };

it("operations at once have connections of their own, and few of them are kept", async () => {
  let waiting: (() => void)[] = [];
  await using agent = await fakeAgent((_request, connection) => {
    waiting.push(() => connection.answer(info));
    if (waiting.length < 20) return;
    for (const answer of waiting) answer();
    waiting = [];
  });
  await using client = clientOf(agent);
  const round = () => Promise.all(Array.from({ length: 20 }, () => client.info(options())));
  await round();
  expect(agent.connections).toBe(20);
  await round();
  expect(agent.connections).toBe(24);
});

it("the idle connections of all sandboxes together are bounded", async () => {
  const perClient = 16;
  await using agent = await fakeAgent((_request, connection) => connection.answer(info));
  const clients = Array.from({ length: 70 }, () => clientOf(agent));
  for (const client of clients) {
    await Promise.all(Array.from({ length: perClient }, () => client.info(options())));
  }
  await expect.poll(() => agent.open, { timeout: 10_000 }).toBeLessThanOrEqual(1_024);
  expect(agent.connections).toBeGreaterThan(1_024);
  await Promise.all(clients.map((client) => client[Symbol.asyncDispose]()));
  await expect.poll(() => agent.open, { timeout: 10_000 }).toBe(0);
  // What was counted has been given back: idle connections are kept again.
  await using client = clientOf(agent);
  const before = agent.connections;
  for (let index = 0; index < 3; index += 1) await client.info(options());
  expect(agent.connections).toBe(before + 1);
});

it("a kept connection that turns out dead is replaced once, unseen by the caller", async () => {
  await using agent = await fakeAgent((request, connection) => {
    if (agent.requests.length === 2) connection.socket.destroy();
    else connection.answer({ execs: [], op: request.op });
  });
  await using client = clientOf(agent);
  await client.execs.list(options());
  expect(await client.execs.list(options())).toEqual([]);
  expect(agent.connections).toBe(2);
});

it("what cannot be repeated is not sent again: its outcome is not known", async () => {
  await using agent = await fakeAgent((request, connection) => {
    if (request.op === "exec.list") connection.answer({ execs: [] });
    else connection.socket.destroy();
  });
  await using client = clientOf(agent);
  const calls = [
    () => client.files.move("/a", "/b", options()),
    () => client.files.mkdir("/a", { ...options(), parents: false }),
    () => client.files.remove("/a", { ...options(), recursive: false }),
    () => client.execs.signal(execId, 15, options()),
  ];
  for (const call of calls) {
    await client.execs.list(options());
    const before = agent.requests.length;
    await expect(call()).rejects.toThrow(/whether it was done is not known/);
    expect(agent.requests).toHaveLength(before + 1);
  }
});

it("a step in a file system that hangs ends at its deadline, and its connection is not used again", async () => {
  await using agent = await fakeAgent((request, connection) => {
    const entry = {
      name: "fine",
      path: "/fine",
      type: "file",
      size: 9,
      mode: 420,
      uid: 0,
      gid: 0,
      mtime_ms: 1,
    };
    if (request.path === "/fine") connection.answer(entry);
  });
  const channel = new AgentChannel({
    dial: unixDialer(agent.path),
    token: "0".repeat(64),
    name: "sb-test",
    owner: "",
  });
  const files = new AgentFiles({ channel, stepMs: 100 });
  const hanging = [
    () => files.mkdir("/proc/1/x", { ...options(), parents: true }),
    () => files.stat("/proc/1/x", options()),
    () => files.chmod("/proc/1/x", 0o755, options()),
  ];
  for (const act of hanging) await expect(act()).rejects.toBeInstanceOf(DeadlineExceeded);
  const patient = new AgentFiles({ channel });
  expect(await patient.stat("/fine", options())).toMatchObject({ path: "/fine" });
  expect(agent.connections).toBe(hanging.length + 1);
  channel.close();
});

/** An agent that starts a command and cuts the connection instead of saying so. */
function startsUnheard(command: string): Promise<FakeAgent> {
  const record = {
    exec_id: execId,
    pid: 7,
    command,
    args: [],
    tty: false,
    started_at: 1,
    output_bytes: 2,
    first_offset: 0,
    from: 0,
  };
  let starts = 0;
  return fakeAgent((request, connection) => {
    if (request.op === "exec.list") connection.answer({ execs: [] });
    else if (request.op === "exec.get") connection.answer({ ...record, detached: true });
    else if (request.op === "exec.attach") {
      connection.frame(frameKinds.reply, { ...record, detached: false });
      connection.raw(frameKinds.stdout, Buffer.from("hi"), 0);
      connection.frame(frameKinds.event, exit);
      connection.end();
    } else if (starts === 0) {
      starts += 1;
      connection.socket.destroy();
    } else connection.frame(frameKinds.error, { code: "exists", message: "exists already" });
  });
}

it("a start that was heard on a connection that broke is found when it is sent again", async () => {
  await using agent = await startsUnheard("true");
  await using client = clientOf(agent);
  await client.execs.list(options());
  await using view = await client.execs.start(spec, options());
  const events: string[] = [];
  for await (const event of view.events)
    events.push(event.type === "exit" ? "exit" : event.data.toString("utf8"));
  expect([view.pid, events]).toEqual([7, ["hi", "exit"]]);
  expect(agent.requests.at(-1)).toMatchObject({ op: "exec.attach", from: 0, follow: true, lossless: true });
});

it("as many as may follow commands keep neither starts, nor one-shot output, nor who goes on after a break waiting", async () => {
  const record = { exec_id: execId, pid: 7, command: "true", args: [], tty: false, started_at: 1 };
  await using agent = await fakeAgent((_request, connection) =>
    connection.frame(frameKinds.reply, { ...record, detached: true, output_bytes: 0, first_offset: 0 }),
  );
  await using client = clientOf(agent);
  const { signal } = new AbortController();
  const attach = { from: 0, follow: true, lossless: false, signal };
  await Promise.all(Array.from({ length: 768 }, () => client.execs.attach(execId, attach)));
  const left = new AbortController();
  const waits = client.execs.attach(execId, { ...attach, signal: left.signal });
  await client.execs.attach(execId, { ...attach, again: true });
  await client.execs.attach(execId, { ...attach, follow: false });
  await client.execs.start(spec, { signal });
  expect(agent.requests).toHaveLength(768 + 3);
  left.abort(new Error("left"));
  await expect(waits).rejects.toThrow("left");
});

it("a start goes on when fresh connections are cut under it too, and says so when they always are", async () => {
  let cuts = 2;
  await using agent = await fakeAgent((request, connection) => {
    if (request.op !== "exec.start" || cuts > 0) {
      cuts -= 1;
      connection.socket.destroy();
    } else connection.answer({ exec_id: execId, pid: 7, started_at: 1 });
  });
  await using client = clientOf(agent);
  expect(await client.execs.startDetached({ ...spec, detached: true }, options())).toEqual({ pid: 7 });
  cuts = 100;
  await expect(client.execs.start(spec, options())).rejects.toThrow(/connection to sandbox .* broke/);
});

it("what is known of a command is asked for again when fresh connections are cut under the question", async () => {
  let cuts = 0;
  const record = { exec_id: execId, pid: 7, command: "true", args: [], tty: false, started_at: 1 };
  await using agent = await fakeAgent(
    (_request, connection) => {
      cuts -= 1;
      if (cuts >= 0) connection.socket.destroy();
      else connection.answer({ ...record, output_bytes: 0, first_offset: 0, input_taken: 5 });
    },
    undefined,
    ["input", "input_offset"],
  );
  await using client = clientOf(agent);
  cuts = 2;
  expect(await client.execs.inputTaken(execId, "mine", options())).toBe(5);
  cuts = 2;
  expect(await client.execs.get(execId, options())).toMatchObject({ pid: 7 });
  expect(agent.requests.map(({ op }) => op)).toEqual(Array.from({ length: 6 }, () => "exec.get"));
});

it("input that has a name is sent again, once; for an older agent nobody knows what arrived", async () => {
  for (const features of [["input"], []]) {
    let cuts = 1;
    await using agent = await fakeAgent(
      () => undefined,
      (kind, _bytes, connection) => {
        if (kind !== frameKinds.eof) return;
        cuts -= 1;
        if (cuts >= 0) connection.socket.destroy();
        else connection.answer({ written: 3 });
      },
      features,
    );
    await using client = clientOf(agent);
    const write = (again: boolean) =>
      client.execs.writeStdin(execId, Buffer.from("abc"), { close: false, input: "i", again, ...options() });
    if (features.length > 0) {
      await write(false);
      const sent = { op: "exec.stdin", exec_id: execId, input: "i" };
      expect(agent.requests).toEqual([
        { ...sent, again: false },
        { ...sent, again: true },
      ]);
    } else {
      await expect(write(false)).rejects.toThrow(RuntimeGone);
      await expect(write(true)).rejects.toThrow("how much of the input arrived is not known");
      expect(agent.requests).toHaveLength(1);
    }
  }
});

it("a limit that needs a group is lent one first; what cannot is refused by name", async () => {
  const limited = { ...spec, limits: { pids: 4 } };
  const lent: unknown[] = [];
  const groups = {
    lend: async (id: string, limits: unknown) => {
      lent.push(id, limits);
      return () => lent.push("settled");
    },
  };
  const answer = (request: { op?: unknown }, connection: { answer(value: unknown): void }) =>
    connection.answer(request.op === "exec.start" ? { exec_id: execId, pid: 7, started_at: 1 } : {});
  await using agent = await fakeAgent(answer, undefined, ["limits", "exec_group"]);
  await using client = clientOf(agent, { groups });
  expect(await client.execs.startDetached(limited, options())).toEqual({ pid: 7 });
  expect(agent.requests.at(-1)).toMatchObject({ op: "exec.start", limits: { own_group: true } });
  expect(lent).toEqual([execId, { pids: 4 }, "settled"]);
  await using without = clientOf(agent);
  await expect(without.execs.startDetached(limited, options())).rejects.toThrow(
    /limits\.pids needs the capability "exec_limits"/,
  );
  await using older = await fakeAgent(answer, undefined, ["limits"]);
  await using olderClient = clientOf(older, { groups });
  await expect(olderClient.execs.startDetached(limited, options())).rejects.toThrow(
    /limits\.pids is unknown to the agent of this sandbox, which is older/,
  );
  expect(lent).toHaveLength(3);
});

it("an agent that makes its groups itself is asked for one before the start; one that makes none is told by name", async () => {
  const limited = { ...spec, limits: { memoryMb: 64, pids: 4 } };
  const answer = (request: { op?: unknown }, connection: { answer(value: unknown): void }) =>
    connection.answer(request.op === "exec.start" ? { exec_id: execId, pid: 7, started_at: 1 } : {});
  await using agent = await fakeAgent(answer, undefined, ["limits", "exec_group", "own_groups"]);
  await using client = clientOf(agent, { groups: "own" });
  expect(await client.execs.startDetached(limited, options())).toEqual({ pid: 7 });
  expect(agent.requests.slice(-2)).toMatchObject([
    { op: "exec.group", exec_id: execId, memory_bytes: 64 * 1024 * 1024, pids: 4 },
    { op: "exec.start", limits: { own_group: true } },
  ]);
  await using other = await fakeAgent(answer, undefined, ["limits", "exec_group"]);
  await using otherClient = clientOf(other, { groups: "own" });
  await expect(otherClient.execs.startDetached(limited, options())).rejects.toThrow(
    /makes no control groups/,
  );
  expect(other.requests.map(({ op }) => op)).toEqual(["sandbox.info"]);
});

it("a detached start that was heard on a connection that broke is found too", async () => {
  await using agent = await startsUnheard("true");
  await using client = clientOf(agent);
  await client.execs.list(options());
  expect(await client.execs.startDetached({ ...spec, detached: true }, options())).toEqual({ pid: 7 });
});

it("another command of the same id is not taken for the one that was asked for", async () => {
  await using agent = await startsUnheard("false");
  await using client = clientOf(agent);
  await client.execs.list(options());
  await expect(client.execs.start(spec, options())).rejects.toThrow(Conflict);
});

it("a fresh connection that is cut before the reply means the runtime is gone", async () => {
  await using agent = await fakeAgent((_request, connection) => connection.socket.destroy());
  await using client = clientOf(agent);
  await expect(client.execs.list(options())).rejects.toThrow(RuntimeGone);
  expect(agent.connections).toBe(1);
});

it("an endpoint that is not there means the runtime is gone", async () => {
  const dial = unixDialer("/nonexistent/socket");
  await using client = new AgentClient({ dial, token: "", name: "sb-test", owner: "", logger: silentLogger });
  await expect(client.stats(options())).rejects.toThrow(RuntimeGone);
  const gone = Promise.withResolvers<void>();
  client.onGone(() => gone.resolve());
  await gone.promise;
});

it("error codes become the domain's errors, and the connection stays of use", async () => {
  const codes = ["not_found", "not_empty", "not_regular", "permission", "io"];
  await using agent = await fakeAgent((_request, connection) => {
    connection.frame(frameKinds.error, { code: codes[agent.requests.length - 1], message: "told so" });
  });
  await using client = clientOf(agent);
  for (const type of [NotFound, Conflict, BadRequest, BadRequest, ProviderError]) {
    const failure = await client.files.stat("/x", options()).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(type);
    expect(String(failure)).toContain("told so");
  }
  expect(agent.connections).toBe(1);
});

it("an aborted call closes its connection and rejects with the signal's reason", async () => {
  const closed = Promise.withResolvers<void>();
  const stop = new AbortController();
  const reason = new Error("no longer wanted");
  await using agent = await fakeAgent((_request, connection) => {
    connection.socket.on("close", () => closed.resolve());
    stop.abort(reason);
  });
  await using client = clientOf(agent);
  await expect(client.execs.list({ signal: stop.signal })).rejects.toBe(reason);
  await closed.promise;
});

it("output arrives in order with its offsets, then the exit, and the signal no longer matters", async () => {
  const stop = new AbortController();
  await using agent = await fakeAgent((_request, connection) => {
    connection.frame(frameKinds.reply, { exec_id: execId, pid: 7, started_at: 1 });
    connection.raw(frameKinds.stdout, Buffer.from("a"), 0);
    connection.raw(frameKinds.stderr, Buffer.from("b"), 1);
    connection.frame(frameKinds.event, exit);
    connection.end();
  });
  await using client = clientOf(agent);
  const view = await client.execs.start(spec, { signal: stop.signal });
  stop.abort();
  expect(view.pid).toBe(7);
  const events: ExecEvent[] = [];
  for await (const event of view.events) events.push(event);
  expect(
    events.map((event) => (event.type === "output" ? `${event.stream}${event.offset}` : "exit")),
  ).toEqual(["stdout0", "stderr1", "exit"]);
});

it("all events of a short command can be taken together, once, when all have come with the answer and none was taken", async () => {
  const frames = (more: number) =>
    Buffer.concat([
      encodeJsonFrame(frameKinds.reply, { exec_id: execId, pid: 7, started_at: 1 }),
      encodeHeader(frameKinds.stdout, 8 + 2 + more),
      Buffer.alloc(8 + 2 + more),
      encodeJsonFrame(frameKinds.event, { ...exit, output_bytes: 2 + more }),
      encodeHeader(frameKinds.end, 0),
    ]);
  const answers = [
    [frames(0)],
    [frames(20_000)],
    [frames(0).subarray(0, -5), frames(0).subarray(-5)],
    [frames(0)],
  ];
  await using agent = await fakeAgent((_request, { socket }) => {
    const [first, rest] = answers.shift() ?? [];
    socket.write(first ?? "");
    if (rest !== undefined) setTimeout(() => socket.write(rest), 50);
  });
  await using client = clientOf(agent);
  const start = () => client.execs.start(spec, options());
  const read = async ({ events }: { events: AsyncIterable<ExecEvent> }) => {
    const types: string[] = [];
    for await (const event of events) types.push(event.type);
    return types;
  };
  const short = await start();
  const whole = short.whole?.();
  expect(whole?.map(({ type }) => type)).toEqual(["output", "exit"]);
  expect([short.whole?.(), await read(short)]).toEqual([undefined, []]);
  // Larger, or not all there: read as any other.
  for (let n = 0; n < 2; n += 1) {
    const other = await start();
    expect(other.whole?.()).toBeUndefined();
    expect(await read(other)).toEqual(["output", "exit"]);
  }
  const begun = await start();
  await begun.events[Symbol.asyncIterator]().next();
  expect(begun.whole?.()).toBeUndefined();
  expect(agent.connections).toBe(1);
});

it("a stream that is cut ends without an exit", async () => {
  await using agent = await fakeAgent((_request, connection) => {
    connection.frame(frameKinds.reply, { exec_id: execId, pid: 7, started_at: 1 });
    connection.raw(frameKinds.stdout, Buffer.from("a"), 0);
    connection.socket.end();
  });
  await using client = clientOf(agent);
  const view = await client.execs.start(spec, options());
  const types: string[] = [];
  for await (const event of view.events) types.push(event.type);
  expect(types).toEqual(["output"]);
});

it("a reader that does not read stops the agent from sending", async () => {
  let written = 0;
  const drained = Promise.withResolvers<void>();
  await using agent = await fakeAgent((_request, connection) => {
    connection.frame(frameKinds.reply, { exec_id: execId, pid: 7, started_at: 1 });
    const part = Buffer.alloc(65_536);
    for (let index = 0; index < 320; index += 1) {
      connection.raw(frameKinds.stdout, part, index * part.length);
      written += part.length;
    }
    connection.frame(frameKinds.event, exit);
    connection.end();
    connection.socket.once("drain", () => drained.resolve());
    queueMicrotask(() => expect(connection.socket.writableLength).toBeGreaterThan(15_000_000));
  });
  await using client = clientOf(agent);
  const view = await client.execs.start(spec, options());
  let bytes = 0;
  for await (const event of view.events) if (event.type === "output") bytes += event.data.length;
  expect(bytes).toBe(written);
  await drained.promise;
});

it("a download that is cut short fails instead of looking whole", async () => {
  const info = { name: "f", path: "/f", type: "file", size: 9, mode: 420, uid: 0, gid: 0, mtime_ms: 1 };
  await using agent = await fakeAgent((_request, connection) => {
    connection.frame(frameKinds.reply, { info, offset: 0, length: 9 });
    connection.raw(frameKinds.data, Buffer.from("1234"));
    connection.socket.end();
  });
  await using client = clientOf(agent);
  const { body, length } = await client.files.read("/f", options());
  expect(length).toBe(9);
  const read = (async () => {
    for await (const part of body) expect(String(part)).toBe("1234");
  })();
  await expect(read).rejects.toThrow(RuntimeGone);
});

it("an upload's source is held while the agent does not take it, and let go when it fails", async () => {
  let produced = 0;
  let released = false;
  const part = Buffer.alloc(65_536);
  async function* source() {
    try {
      for (; produced < 100_000_000; produced += part.length) yield part;
    } finally {
      released = true;
    }
  }
  await using agent = await fakeAgent((_request, connection) => {
    connection.socket.pause();
    setImmediate(() => {
      connection.frame(frameKinds.error, { code: "no_space", message: "the disk is full" });
      connection.socket.resume();
    });
  });
  await using client = clientOf(agent);
  await expect(client.files.write("/f", source(), options())).rejects.toThrow("the disk is full");
  await expect.poll(() => released).toBe(true);
  expect(produced).toBeLessThan(10_000_000);
});

it.each([
  ["shorter", 4],
  ["longer", 12],
])(
  "a body that is %s than its reply promised fails, so that nobody waits for the rest",
  async (_word, sent) => {
    const info = { name: "f", path: "/f", type: "file", size: 10, mode: 0o644, uid: 0, gid: 0, mtime_ms: 0 };
    await using agent = await fakeAgent((_request, connection) => {
      connection.frame(frameKinds.reply, { info, offset: 0, length: 10 });
      connection.socket.write(Buffer.concat([encodeHeader(frameKinds.data, sent), Buffer.alloc(sent)]));
      connection.end();
    });
    await using client = clientOf(agent);
    const { length, body } = await client.files.read("/f", options());
    expect(length).toBe(10);
    await expect(body.toArray()).rejects.toThrow(/became shorter|more than it promised/);
  },
);

it("a body that came as promised is whole, though the sandbox ends before the agent has said so", async () => {
  const info = { name: "f", path: "/f", type: "file", size: 10, mode: 0o644, uid: 0, gid: 0, mtime_ms: 0 };
  const whole = Buffer.concat([encodeHeader(frameKinds.data, 10), Buffer.from("0123456789")]);
  await using agent = await fakeAgent((_request, connection) => {
    connection.frame(frameKinds.reply, { info, offset: 0, length: 10 });
    connection.socket.write(whole, () => setTimeout(() => connection.socket.destroy(), 50));
  });
  await using client = clientOf(agent);
  const { body } = await client.files.read("/f", options());
  expect(String(Buffer.concat(await body.toArray()))).toBe("0123456789");
  await expect.poll(() => body.closed).toBe(true);
});

it("a body that fills what may wait for its reader keeps no connection once all of it has come", async () => {
  // A little more than may wait: what makes it too much is the last of it.
  const size = 512 * 1024 + 10;
  const info = { name: "f", path: "/f", type: "file", size, mode: 0o644, uid: 0, gid: 0, mtime_ms: 0 };
  await using agent = await fakeAgent((_request, connection) => {
    connection.frame(frameKinds.reply, { info, offset: 0, length: size });
    connection.raw(frameKinds.data, Buffer.alloc(size));
    setTimeout(() => connection.end(), 20);
  });
  await using client = clientOf(agent);
  for (let times = 0; times < 2; times += 1) {
    const { body } = await client.files.read("/f", options());
    await sleep(50);
    expect(Buffer.concat(await body.toArray())).toHaveLength(size);
    await sleep(100);
  }
  expect(agent.connections).toBe(1);
});

it("frames out of turn and bad versions end the connection with a ProviderError", async () => {
  await using agent = await fakeAgent((request, connection) => {
    if (request.op === "exec.list") connection.socket.write(encodeHeader(0x55, 0));
    else connection.frame(frameKinds.error, { code: "version", message: "too old" });
  });
  await using client = clientOf(agent);
  await expect(client.execs.list(options())).rejects.toThrow(/unknown kind 0x55/);
  await expect(client.stats(options())).rejects.toThrow(ProviderError);
  expect(agent.connections).toBe(2);
});

it("onGone() calls back once, when the events connection ends and no other can be made", async () => {
  const agent = await fakeAgent((_request, connection) => connection.frame(frameKinds.reply, {}));
  await using client = clientOf(agent);
  let calls = 0;
  const gone = Promise.withResolvers<void>();
  const stop = client.onGone(() => {
    throw new Error("was told to stop listening");
  });
  client.onGone(() => {
    calls += 1;
    gone.resolve();
  });
  stop();
  await expect.poll(() => agent.requests.length).toBe(1);
  await agent[Symbol.asyncDispose]();
  await gone.promise;
  const late = Promise.withResolvers<void>();
  client.onGone(() => late.resolve());
  await late.promise;
  expect(calls).toBe(1);
});

it("what ended before anybody wanted to hear of ends is told to nobody", async () => {
  await using agent = await fakeAgent((request, connection) => {
    if (request.op === "sandbox.events") return connection.frame(frameKinds.reply, {});
    connection.answer(request.op === "exec.list" ? { execs: [] } : { pid: 3 });
  });
  await using client = clientOf(agent);
  await client.execs.startDetached(spec, options());
  const listening = Promise.withResolvers<void>();
  const stop = new AbortController();
  const exits = client.execs.exits({ signal: stop.signal, onListening: () => listening.resolve() });
  await listening.promise;
  expect(agent.requests.map(({ op }) => op)).toEqual(["exec.start", "sandbox.events"]);
  stop.abort();
  for await (const ended of exits) expect(ended).toBeUndefined();
});

it("the end of a command that has ended before the agent tells ends is told", async () => {
  const record = {
    pid: 3,
    state: "exited",
    command: "x",
    args: [],
    tty: false,
    detached: true,
    first_offset: 0,
    ...exit,
  };
  const ended = Promise.withResolvers<void>();
  await using agent = await fakeAgent((request, connection) => {
    if (request.op === "exec.list") return connection.answer({ execs: [record] });
    if (request.op === "sandbox.events")
      return void ended.promise.then(() => connection.frame(frameKinds.reply, {}));
    connection.answer({ pid: 3 });
    ended.resolve();
  });
  await using client = clientOf(agent);
  const told: string[] = [];
  const stop = new AbortController();
  const read = (async () => {
    for await (const { execId } of client.execs.exits({ signal: stop.signal })) told.push(execId);
  })();
  await client.execs.startDetached(spec, options());
  await expect.poll(() => told).toEqual([execId]);
  stop.abort();
  await read;
});

it("a broken events connection is made anew, and exits missed meanwhile are told once", async () => {
  const record = {
    pid: 3,
    state: "exited",
    command: "x",
    args: [],
    tty: false,
    detached: true,
    first_offset: 0,
    ...exit,
  };
  await using agent = await fakeAgent((request, connection) => {
    if (request.op === "exec.list") return connection.answer({ execs: [record] });
    connection.frame(frameKinds.reply, {});
    if (agent.connections === 1) connection.socket.end();
    else connection.frame(frameKinds.event, exit);
  });
  await using client = clientOf(agent);
  const stop = new AbortController();
  const told: string[] = [];
  for await (const ended of client.execs.exits({ signal: stop.signal })) {
    told.push(ended.execId);
    setImmediate(() => stop.abort());
  }
  expect(told).toEqual([execId]);
});

it("the end of a command is told whose id the agent had forgotten", async () => {
  let events: { frame(kind: number, value: unknown): void } | undefined;
  await using agent = await fakeAgent((request, connection) => {
    if (request.op === "sandbox.events") {
      events = connection;
      return connection.frame(frameKinds.reply, {});
    }
    // It ends before the answer is there.
    events?.frame(frameKinds.event, exit);
    connection.answer({ pid: 3 });
  });
  await using client = clientOf(agent);
  const told: string[] = [];
  const listening = Promise.withResolvers<void>();
  const exits = client.execs.exits({ ...options(), onListening: () => listening.resolve() });
  const read = (async () => {
    for await (const ended of exits) if (told.push(ended.execId) === 2) break;
  })();
  await listening.promise;
  for (const ends of [1, 2]) {
    await client.execs.startDetached(spec, options());
    await expect.poll(() => told.length).toBe(ends);
  }
  await read;
  expect(told).toEqual([execId, execId]);
});

it("a command of more text than a sandbox takes at once is TooLarge, and is not sent", async () => {
  await using agent = await fakeAgent((_request, connection) => connection.answer({}));
  await using client = clientOf(agent);
  const large = { ...spec, env: { LARGE: "x".repeat(12_000_000) } };
  await expect(client.execs.start(large, options())).rejects.toThrow(TooLarge);
  await expect(client.execs.startDetached(large, options())).rejects.toThrow(TooLarge);
  expect(agent.requests).toEqual([]);
});

it("events connections may break again and again: neither the sandbox nor a call under way ends", async () => {
  let listed: (() => void) | undefined;
  await using agent = await fakeAgent((request, connection) => {
    if (request.op === "sandbox.stats") {
      listed = () => connection.answer({ pids: 3 });
      return;
    }
    if (request.op === "exec.list") return connection.answer({ execs: [] });
    connection.frame(frameKinds.reply, {});
    connection.socket.end();
  });
  await using client = clientOf(agent);
  let gone = false;
  client.onGone(() => {
    gone = true;
  });
  const stats = client.stats(options());
  const feeds = () => agent.requests.filter(({ op }) => op === "sandbox.events").length;
  await expect.poll(feeds, { timeout: 10_000 }).toBeGreaterThanOrEqual(4);
  expect(gone).toBe(false);
  listed?.();
  expect(await stats).toEqual({ pids: 3 });
});

it("the list is read after the events connection is there, so that no end falls between", async () => {
  const order: unknown[] = [];
  await using agent = await fakeAgent((request, connection) => {
    order.push(request.op);
    if (request.op === "exec.list") return connection.answer({ execs: [] });
    if (agent.connections === 1) {
      connection.frame(frameKinds.reply, {});
      connection.socket.end();
    } else {
      setTimeout(() => connection.frame(frameKinds.reply, {}), 50);
    }
  });
  await using client = clientOf(agent);
  let listening = 0;
  const stop = new AbortController();
  const exits = client.execs.exits({ signal: stop.signal, onListening: () => listening++ });
  await expect
    .poll(() => order, { timeout: 10_000 })
    .toEqual(["sandbox.events", "sandbox.events", "exec.list"]);
  expect(listening).toBe(1);
  stop.abort();
  for await (const ended of exits) expect(ended).toBeUndefined();
});

it("commands are listed batch by batch, and an agent that knows no batches is not asked for them", async () => {
  const idOf = (end: string) => `${execId.slice(0, -1)}${end}`;
  const record = (end: string) => ({
    exec_id: idOf(end),
    pid: 3,
    state: "running",
    command: "x",
    args: [],
    tty: false,
    detached: true,
    started_at: 1,
    output_bytes: 0,
    first_offset: 0,
  });
  const asked: unknown[] = [];
  let batches = true;
  await using agent = await fakeAgent((request, connection) => {
    asked.push(request.after);
    if (!batches) return connection.answer({ execs: [record("d")] });
    if (request.after === undefined) connection.answer({ execs: [record("a"), record("b")], next: 7 });
    else connection.answer({ execs: [record("c")] });
  });
  await using client = clientOf(agent);
  const { signal } = new AbortController();
  expect((await client.execs.list({ signal })).map((info) => info.execId)).toEqual(["a", "b", "c"].map(idOf));
  batches = false;
  expect((await client.execs.list({ signal })).map((info) => info.execId)).toEqual([idOf("d")]);
  expect(asked).toEqual([undefined, 7, undefined]);
});

it("a listing waits for room, reads nothing more meanwhile, and then comes whole and in order", async () => {
  const entry = (number: number) => ({
    name: `f${number}`,
    path: `/f${number}`,
    type: "file",
    size: 0,
    mode: 0o644,
    uid: 0,
    gid: 0,
    mtime_ms: 0,
  });
  await using agent = await fakeAgent((_request, connection) => {
    for (let number = 0; number < 5; number += 1)
      connection.frame(frameKinds.event, { event: "entries", entries: [entry(number)] });
    connection.end();
  });
  await using client = clientOf(agent);
  const gate = Promise.withResolvers<void>();
  const asked: number[] = [];
  const listed = client.files.list("/", {
    ...options(),
    depth: 1,
    room: (bytes) => {
      asked.push(bytes);
      return asked.length === 2 ? gate.promise : undefined;
    },
  });
  await expect.poll(() => asked.length).toBe(2);
  gate.resolve();
  expect((await listed).map((one) => one.name)).toEqual(["f0", "f1", "f2", "f3", "f4"]);
  expect(asked).toEqual([...asked].sort((a, b) => a - b));
  // The connection is good for the next one.
  expect(await client.files.list("/", { ...options(), depth: 1 })).toHaveLength(5);
  expect(agent.connections).toBe(1);
  const refused = client.files.list("/", {
    ...options(),
    depth: 1,
    room: () => Promise.reject(new Error("no room")),
  });
  await expect(refused).rejects.toThrow("no room");
});

it("an agent that lists more than it may is not believed", async () => {
  const path = `/${"n".repeat(1_000_000)}`;
  await using agent = await fakeAgent((_request, connection) => {
    for (let number = 0; number < 40; number += 1)
      connection.frame(frameKinds.event, { event: "paths", paths: [path] });
    connection.end();
  });
  await using client = clientOf(agent);
  await expect(client.files.glob("/*", options())).rejects.toThrow(TooLarge);
});

it("a time that no timestamp can tell becomes the nearest that one can", async () => {
  const times = [-9e18, 9e18, 0];
  await using agent = await fakeAgent((request, connection) => {
    const entry = { name: "f", path: "/f", type: "file", size: 0, mode: 0, uid: 0, gid: 0 };
    connection.answer({ ...entry, mtime_ms: times[Number(String(request.path).slice(1))] ?? 0 });
  });
  await using client = clientOf(agent);
  const told = [];
  for (const index of times.keys())
    told.push((await client.files.stat(`/${index}`, options())).modifiedAt.toISOString());
  expect(told).toEqual(["0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z"]);
});
