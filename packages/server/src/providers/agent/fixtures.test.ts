import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { projectRoot } from "../../../test/support/agent-binary.ts";
import { silentLogger } from "../../platform/logger.ts";
import type {
  CallOptions,
  ExecId,
  ExecSpec,
  FileOperations,
  KillOptions,
  SandboxId,
} from "../../ports/index.ts";
import { AgentClient, type AgentConfigure, type AgentRenewal } from "./agent-client.ts";
import { unixDialer } from "./dialers.ts";
import { translateFailure } from "./failures.ts";
import { type FakeConnection, fakeAgent } from "./fake-agent.ts";
import { encodeAck, encodeHeader, encodeJsonFrame, FrameDecoder, frameKinds } from "./frames.ts";
import { knownOperations } from "./known-operations.ts";

/** What the agent's own tests read too: `agent/protocol/tests/fixtures.rs`. */
interface Operation {
  /** Who sends it; absent: the service. */
  from?: string;
  name: string;
  request: { op: string } & Record<string, unknown>;
  reply?: Record<string, unknown>;
  events?: Record<string, unknown>[];
  /** What the agent that is asked names in its welcome. */
  features?: string[];
}
const fixture = (name: string) =>
  JSON.parse(readFileSync(join(projectRoot, "agent", "fixtures", name), "utf8"));
const { hello, errors, operations } = fixture("operations.json") as {
  hello: { token: string };
  errors: { code: string; message: string }[];
  operations: Operation[];
};

const execId = "ex-abcdefgh" as ExecId;
/** A deadline for each call: one for all would let those after a call that hangs pass without asking for anything. */
const options = {
  get signal() {
    return AbortSignal.timeout(15_000);
  },
};
const body = async function* () {
  yield Buffer.from("text");
};
const first = async <T>(items: AsyncIterable<T>): Promise<T | undefined> => {
  for await (const item of items) return item;
  return undefined;
};
const all = async <T>(items: AsyncIterable<T>): Promise<T[]> => {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
};
const command = { execId, command: "echo", env: {}, stdin: false };
const everything: ExecSpec = {
  ...command,
  user: "0",
  tty: { cols: 80, rows: 24 },
  tag: "t",
  workdir: "/w",
  args: ["hi"],
  argv: ["/bin/echo", "hi"],
  env: { A: "b" },
  stdin: true,
  timeoutMs: 1_000,
  detached: false,
};

/** Options with none left out, so that what is added to an operation has to be added here. */
const whole = <T>(given: Required<T>): T => given;
const room = () => undefined;
type OptionsOf<K extends keyof FileOperations> = Extract<
  Parameters<FileOperations[K]>[number],
  { signal: AbortSignal }
>;

/** How the service asks for each operation, with every field that it ever sends; what it makes of the answer. */
const calls: Record<string, (client: AgentClient) => Promise<unknown>> = {
  configure: (client) =>
    client.configure(
      whole<AgentConfigure>({
        sandboxId: "sb-abc123def456" as SandboxId,
        hostname: "box",
        env: { A: "b" },
        user: "1000:1000",
        workdir: "/w",
        expiresInMs: null,
        execCaps: ["CAP_CHOWN"],
        ringBytes: 65_536,
      }),
      options,
    ),
  info: (client) => client.info(options),
  "info of an agent without a sandbox": (client) => client.info(options),
  expiry: (client) => client.setExpiry(5_000, options),
  "no expiry": (client) => client.setExpiry(null, options),
  stats: (client) => client.stats(options),
  "no stats": (client) => client.stats(options),
  events: (client) => first(client.execs.exits(options)),
  renew: (client) =>
    client.renew(
      whole<AgentRenewal>({
        realtime: new Date(1_700_000_000_000),
        entropy: Buffer.from("00ff".repeat(16), "hex"),
        hostname: "box-2",
      }),
      options,
    ),
  "make a group": (client) => client.makeGroup(execId, { memoryMb: 64, pids: 32 }, options),
  shutdown: (client) => client.shutdown(options),
  start: async (client) => {
    await using view = await client.execs.start(everything, options);
    expect(view.watchInput).toBeUndefined();
    return all(view.events);
  },
  "start with a named input": async (client) => {
    await using view = await client.execs.start({ ...everything, input: "in-1" }, options);
    const counts: number[] = [];
    const events = await all(view.events);
    view.watchInput?.((taken) => counts.push(taken));
    return { counts, events };
  },
  "start with a whole input": async (client) => {
    await using view = await client.execs.start({ ...everything, input: "in-1", inputBytes: 4 }, options);
    return all(view.events);
  },
  "start and acknowledge": async (client) => calls.start?.(client),
  "start detached": (client) =>
    client.execs.startDetached(
      { ...command, args: [], argv: ["echo"], timeoutMs: 1_000, detached: true },
      options,
    ),
  "start detached with a whole input": (client) =>
    client.execs.startDetached(
      { ...command, args: [], argv: ["echo"], timeoutMs: 1_000, detached: true, stdin: true, inputBytes: 4 },
      options,
    ),
  attach: async (client) => {
    await using view = await client.execs.attach(execId, {
      from: 3,
      follow: true,
      lossless: true,
      ...options,
    });
    return { info: view.info, events: await all(view.events) };
  },
  "attach with a named input": async (client) => {
    const attach = { from: 3, follow: true, lossless: true, input: "in-1" };
    await using view = await client.execs.attach(execId, { ...attach, ...options });
    const counts: number[] = [];
    view.watchInput?.((taken) => counts.push(taken));
    return { info: view.info, counts, events: await all(view.events) };
  },
  "attach and acknowledge": async (client) => calls.attach?.(client),
  get: (client) => client.execs.get(execId, options),
  "get a command whose whole input has not come": (client) => client.execs.get(execId, options),
  list: (client) => client.execs.list(options),
  "write to stdin": (client) =>
    client.execs.writeStdin(execId, Buffer.from("text"), { close: false, ...options }),
  "write to stdin once": (client) =>
    client.execs.writeStdin(execId, Buffer.from("text"), { close: false, input: "in-1", ...options }),
  "write to stdin at an offset": (client) =>
    client.execs.writeStdin(execId, Buffer.from("text"), {
      close: false,
      input: "in-1",
      offset: 4,
      ...options,
    }),
  "get what was taken of an input": (client) => client.execs.inputTaken(execId, "in-1", options),
  "close stdin": (client) => client.execs.writeStdin(execId, Buffer.alloc(0), { close: true, ...options }),
  resize: (client) => client.execs.resize(execId, { cols: 100, rows: 50 }, options),
  signal: (client) => client.execs.signal(execId, 15, options),
  kill: (client) => client.execs.kill(execId, { reason: "cancelled", ...options }),
  "kill for a lost input": (client) =>
    client.execs.kill(
      execId,
      whole<CallOptions & KillOptions>({ reason: "cancelled", inputLostBytes: 3, ...options }),
    ),
  grace: (client) => client.execs.setGrace(execId, 30_000, options),
  "no grace": (client) => client.execs.setGrace(execId, null, options),
  stat: (client) => client.files.stat("/w/a", whole<OptionsOf<"stat">>({ follow: true, ...options })),
  "list files": (client) => client.files.list("/w", whole<OptionsOf<"list">>({ depth: 2, room, ...options })),
  read: async (client) => {
    const read = await client.files.read(
      "/w/a",
      whole<OptionsOf<"read">>({ offset: 1, length: 4, ...options }),
    );
    return { ...read, body: String(Buffer.concat(await all(read.body))) };
  },
  write: (client) =>
    client.files.write(
      "/w/a",
      body(),
      whole<OptionsOf<"write">>({ mode: 0o640, user: "0", spends: false, maxBytes: 64, ...options }),
    ),
  mkdir: (client) =>
    client.files.mkdir(
      "/w/d",
      whole<OptionsOf<"mkdir">>({ mode: 0o700, user: "0", parents: true, ...options }),
    ),
  move: (client) => client.files.move("/w/a", "/w/b", whole<OptionsOf<"move">>(options)),
  remove: (client) =>
    client.files.remove("/w/a", whole<OptionsOf<"remove">>({ recursive: true, ...options })),
  chmod: (client) => client.files.chmod("/w/a", 0o644, whole<OptionsOf<"chmod">>(options)),
  glob: (client) => client.files.glob("/w/*", whole<OptionsOf<"glob">>({ room, ...options })),
  archive: async (client) =>
    String(Buffer.concat(await all(await client.files.archive("/w", whole<OptionsOf<"archive">>(options))))),
  unpack: (client) =>
    client.files.unpack("/w", body(), whole<OptionsOf<"unpack">>({ spends: false, user: "0", ...options })),
  watch: async (client) =>
    first(await client.files.watch("/w", whole<OptionsOf<"watch">>({ recursive: true, ...options }))),
  dial: async (client) => {
    const socket = await client.dialPort(80, options);
    socket.on("error", () => undefined).destroy();
  },
};

const staysOpen = new Set(["sandbox.events", "file.watch", "port.dial"]);
const takesABody = new Set(["file.write", "file.unpack", "exec.stdin"]);
const sendsABody = new Set(["file.read", "file.archive"]);

function answer(operation: Operation, connection: FakeConnection): void {
  const { op } = operation.request;
  if (operation.reply !== undefined) connection.frame(frameKinds.reply, operation.reply);
  if (sendsABody.has(op)) connection.raw(frameKinds.data, Buffer.from("text"));
  if (op === "exec.attach" || (op === "exec.start" && operation.request.follow === true))
    connection.raw(frameKinds.stdout, Buffer.from("out"), Number(operation.request.from ?? 0));
  for (const event of operation.events ?? []) connection.frame(frameKinds.event, event);
  if (!staysOpen.has(op)) connection.end();
}

describe("operations of the protocol, as both sides' fixtures spell them", () => {
  // What the launcher asks is held against its fixture there.
  it.for(operations.filter(({ from }) => from !== "launcher"))("$name", async (operation) => {
    const call = calls[operation.name];
    if (call === undefined) throw new Error(`nothing here asks for "${operation.name}"`);
    await using agent = await fakeAgent(
      (request, connection) => {
        if (!takesABody.has(String(request.op))) answer(operation, connection);
      },
      (kind, _bytes, connection) => {
        if (kind === frameKinds.eof && takesABody.has(operation.request.op)) answer(operation, connection);
      },
      operation.features,
    );
    const dial = unixDialer(agent.path);
    await using client = new AgentClient({
      dial,
      token: hello.token,
      name: "sb-test",
      owner: "",
      logger: silentLogger,
    });
    expect(await call(client)).toMatchSnapshot();
    expect(agent.requests).toEqual([operation.request]);
  });

  it("each code of an error is one that is known", () => {
    const told = errors.map(({ code, message }) => [
      code,
      translateFailure(code, message, { name: "sb" }).constructor.name,
    ]);
    expect(Object.fromEntries(told)).toMatchSnapshot();
  });
});

/** Operations and fields of an agent that names no feature; it refuses any other. `tty.cols` is a field of a field. */
const firstProtocol: Record<string, string[]> = fixture("first-protocol.json").operations;

function unknownToTheFirst(request: Record<string, unknown>): string[] {
  const { op, ...fields } = request;
  const known = firstProtocol[String(op)];
  if (known === undefined) return [String(op)];
  const named = Object.entries(fields).flatMap(([name, value]) => [
    name,
    ...(typeof value === "object" && value !== null && !Array.isArray(value)
      ? Object.keys(value).map((inner) => `${name}.${inner}`)
      : []),
  ]);
  return named.filter((name) => !known.includes(name) && !known.includes(name.replace(/\..*/, ".*")));
}

/** An agent that knows no feature and refuses everything. */
async function refusingAgent() {
  const asked = Promise.withResolvers<void>();
  const agent = await fakeAgent((_request, connection) => {
    asked.resolve();
    connection.frame(frameKinds.error, { code: "bad_request", message: "refused by the agent" });
  });
  return Object.assign(agent, { asked: asked.promise });
}

/** @returns what a call of the fixtures fails with; the ends of commands are asked for until they are told, and left at once. */
async function failureOf(
  name: string,
  client: AgentClient,
  agent: Awaited<ReturnType<typeof refusingAgent>>,
): Promise<unknown> {
  const call = calls[name]?.(client).then(
    () => undefined,
    (error: unknown) => error,
  );
  return name === "events" ? agent.asked : call;
}

describe("an agent of the first protocol is asked nothing that it does not know", () => {
  it.for(Object.keys(calls))("%s", async (name) => {
    await using agent = await refusingAgent();
    const dial = unixDialer(agent.path);
    await using client = new AgentClient({
      dial,
      token: hello.token,
      name: "sb-test",
      owner: "",
      logger: silentLogger,
    });
    const failure = await failureOf(name, client, agent);
    expect(agent.requests.flatMap(unknownToTheFirst)).toEqual([]);
    // What such an agent cannot do is refused before it is sent, by name.
    if (agent.requests.length === 0) expect(String(failure)).toContain("older than the service");
    else if (name !== "events") expect(String(failure)).toContain("refused by the agent");
  });

  it("each method that talks to an agent is among the calls", async () => {
    await using agent = await refusingAgent();
    const dial = unixDialer(agent.path);
    await using client = new AgentClient({
      dial,
      token: hello.token,
      name: "sb-test",
      owner: "",
      logger: silentLogger,
    });
    const called = new Set<string>();
    const watched = <T extends object>(target: T): T =>
      new Proxy(target, {
        get: (inner, key) => {
          called.add(String(key));
          const value: unknown = Reflect.get(inner, key, inner);
          if (typeof value === "function") return value.bind(inner);
          return typeof value === "object" && value !== null ? watched(value) : value;
        },
      });
    for (const name of Object.keys(calls)) await failureOf(name, watched(client), agent);
    const methods = [client, client.execs, client.files]
      .flatMap((part) => Object.getOwnPropertyNames(Object.getPrototypeOf(part)))
      .filter((name) => !["constructor", "onGone"].includes(name));
    expect(methods.filter((name) => !called.has(name))).toEqual([]);
  });
});

interface Frame {
  name: string;
  kind: keyof typeof frameKinds;
  hex: string;
  json?: Record<string, unknown>;
  bytes?: string;
  offset?: string;
}
const frames = fixture("frames.json") as {
  frames: Frame[];
  refused: { name: string; hex: string }[];
};

it.for(frames.frames)("frame: $name", (frame) => {
  const bytes = Buffer.from(frame.hex, "hex");
  const seen: unknown[] = [];
  const decoder = new FrameDecoder({
    onControl: (kind, payload) => seen.push({ kind, text: payload.toString() }),
    onRaw: (kind, raw, offset) => seen.push({ kind, hex: raw.toString("hex"), offset }),
  });
  const kind = frameKinds[frame.kind];
  const fromAgent = !["hello", "request", "ack"].includes(frame.kind);
  // Such an offset can be said; the service counts no output as far as that.
  const countless = frame.offset !== undefined && !Number.isSafeInteger(Number(frame.offset));
  if (countless) expect(() => decoder.push(bytes)).toThrow("further than any command writes");
  else if (fromAgent) decoder.push(bytes);
  if (frame.json !== undefined) {
    if (fromAgent) expect(seen).toEqual([{ kind, text: expect.any(String) }]);
    expect(JSON.parse(bytes.subarray(5).toString())).toEqual(frame.json);
    expect(encodeJsonFrame(kind, JSON.parse(bytes.subarray(5).toString()))).toEqual(bytes);
    return;
  }
  const raw = frame.bytes ?? "";
  const length = raw.length / 2 + (frame.offset === undefined ? 0 : 8);
  if (frame.kind === "ack") expect(encodeAck(Number(frame.offset))).toEqual(bytes);
  expect(encodeHeader(kind, length)).toEqual(bytes.subarray(0, 5));
  expect(bytes.subarray(bytes.length - raw.length / 2).toString("hex")).toBe(raw);
});

it.for(frames.refused)("refused frame: $name", (frame) => {
  const decoder = new FrameDecoder({ onControl: () => undefined, onRaw: () => undefined });
  expect(() => decoder.push(Buffer.from(frame.hex, "hex"))).toThrow();
});

describe("what is known of the agent's operations", () => {
  const ofService = operations.filter(({ from }) => from === undefined).map(({ request }) => request.op);

  it("is told of each in docs/agent-protocol.md", () => {
    const page = readFileSync(join(projectRoot, "docs", "agent-protocol.md"), "utf8");
    const told = (op: string) => page.includes(`\n- \`${op}\``) || page.includes(`\`${op} {`);
    const untold = Object.keys(knownOperations).filter((op) => !told(op));
    expect(untold).toEqual([]);
  });

  it("is known of each that has a fixture, and of no other", () => {
    expect(Object.keys(knownOperations).sort()).toEqual([...new Set(ofService)].sort());
  });

  it.each(Object.entries(knownOperations))(
    "%s: what only looks may be sent again, what adds may not",
    (op, { again }) => {
      const looks = /\.(info|stats|events|list|get|attach|stat|read|glob|archive|watch|dial)$/.test(op);
      const adds = /\.(stdin|signal|write|mkdir|move|remove|unpack)$/.test(op);
      if (looks || adds) expect(again).toBe(looks);
    },
  );
});
