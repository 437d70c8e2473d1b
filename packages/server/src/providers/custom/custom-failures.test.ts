import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";
import { afterEach, expect, it, vi } from "vitest";
import { longestTurnMs, TurnWatch } from "../../../test/support/turn-watch.ts";
import { silentLogger } from "../../platform/logger.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { systemClock } from "../../platform/system-clock.ts";
import { heldBytes } from "../../platform/testing/held-memory.ts";
import { chunks, collect, eventually, finish, shell, soon } from "../../ports/contract/provider/harness.ts";
import {
  type DomainError,
  ProviderError,
  RuntimeGone,
  type RuntimeSpec,
  type SandboxOperations,
  Unavailable,
} from "../../ports/index.ts";
import { CustomProvider } from "./index.ts";

type Handler = (request: IncomingMessage, response: ServerResponse, body: string) => void;

const key = "key-of-the-backend";
const secret = "only-the-backend-says-this";
const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0)) await close();
});

const json = (value: unknown, status = 200, headers: Record<string, string> = {}): Handler => {
  return (_request, response) => response.writeHead(status, headers).end(JSON.stringify(value));
};
const events = (...lines: unknown[]) => lines.map((line) => `${JSON.stringify(line)}\n`).join("");
const started = { type: "start", pid: 7 };

interface Times {
  timeoutMs?: number;
  silenceMs?: number;
}

const providerOf = (url: string, { timeoutMs = 5_000, silenceMs = 200 }: Times) =>
  new CustomProvider({
    config: {
      defaultImage: "any",
      url,
      apiKey: key,
      authHeader: "x-api-key",
      networkMode: "none",
      timeoutMs,
    },
    instanceId: "one",
    noteKey: new Uint8Array(32),
    silenceMs,
    pollMs: 50,
    clock: systemClock,
    logger: silentLogger,
  });

/** A backend that keeps sandboxes in a table and runs nothing; `wrong` answers the calls it names in its place. */
async function backend(wrong: Record<string, Handler> = {}, options: Times = {}) {
  const seen: string[] = [];
  const sandboxes = new Map<string, { id: string; labels: unknown }>();
  const right: Record<string, Handler> = {
    "GET /health": json({ status: "ok", capabilities: ["files", "reattach", "expiry", "unheard-of"] }),
    "GET /sandboxes": (_request, response) =>
      response.end(
        JSON.stringify({ sandboxes: [...sandboxes.values()].map((each) => ({ ...each, state: "running" })) }),
      ),
    "POST /sandboxes": (_request, response, body) => {
      const { id, labels } = JSON.parse(body) as { id: string; labels: unknown };
      sandboxes.set(id, { id, labels });
      response.end(JSON.stringify({ id, state: "running" }));
    },
    "GET /sandboxes/:id": (request, response) => {
      const found = sandboxes.get(request.url?.split("/")[2] ?? "");
      response.writeHead(found === undefined ? 404 : 200).end(JSON.stringify({ ...found, state: "running" }));
    },
    "DELETE /sandboxes/:id": (request, response) => {
      response.writeHead(sandboxes.delete(request.url?.split("/")[2] ?? "") ? 200 : 404).end();
    },
    "DELETE /sandboxes/:id/execs/:exec": json({}),
  };
  const server = createServer(async (request, response) => {
    const [pathname = ""] = (request.url ?? "").split("?");
    const steps = pathname.split("/");
    if (steps[2] !== undefined) steps[2] = ":id";
    if (steps[3] === "execs" && steps[4] !== undefined) steps[4] = ":exec";
    const call = `${request.method} ${steps.join("/")}`;
    seen.push(call);
    let body = "";
    for await (const part of request) body += String(part);
    const handler = wrong[call] ?? right[call];
    if (handler === undefined) response.writeHead(501).end();
    else handler(request, response, body);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const provider = providerOf(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, options);
  closing.push(async () => {
    await provider[Symbol.asyncDispose]();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  const spec: RuntimeSpec = {
    runtimeId: randomIds.runtimeId(),
    sandboxId: randomIds.sandboxId(),
    image: "any",
    memoryMb: 64,
    vcpus: 1,
    env: {},
    expiresInMs: null,
    metadata: {},
  };
  const sandbox = () => provider.sandbox(spec.runtimeId);
  return { provider, server, seen, sandboxes, spec, wrong, sandbox };
}

const failureOf = (call: Promise<unknown>): Promise<DomainError> =>
  call.then(
    () => {
      throw new Error("the call did not fail");
    },
    (error: DomainError) => error,
  );

const html: Handler = (_request, response) =>
  response.writeHead(200, { "content-type": "text/html" }).end(`<html>${secret}</html>`);
const half: Handler = (_request, response) => {
  response.writeHead(200, { "content-length": "500" }).write('{"sandboxes":[');
  setImmediate(() => response.destroy());
};
const endless: Handler = (_request, response) => {
  const more = () => {
    while (!response.destroyed && response.write(Buffer.alloc(262_144, " ")));
  };
  response.on("drain", more);
  more();
};

it.each<[string, Handler, typeof ProviderError | typeof Unavailable]>([
  ["401", json({ error: secret }, 401), ProviderError],
  ["403", json({ error: secret }, 403), ProviderError],
  ["500", json({ error: secret }, 500), ProviderError],
  ["503 with a page", json(`<html>${secret}</html>`, 503), ProviderError],
  ["a page with 200", html, ProviderError],
  ["half an answer", half, Unavailable],
  ["an answer without end", endless, ProviderError],
  ["a redirect to itself", json({}, 302, { location: "/sandboxes" }), ProviderError],
  ["a list of something else", json({ sandboxes: [{ id: [secret] }] }), ProviderError],
  [
    "text that is no UTF-8",
    (_request, response) => response.end(Buffer.from([0xff, 0xfe, 0x7b])),
    ProviderError,
  ],
])(
  "an inventory answered with %s fails as what it is, without the backend's words",
  async (_title, handler, kind) => {
    // 64 MiB are read in turns, which a machine that is busy gives rarely.
    const { provider, seen } = await backend({ "GET /sandboxes": handler }, { timeoutMs: 30_000 });
    const failure = await failureOf(provider.inventory(soon(30_000)));
    expect(failure).toBeInstanceOf(kind);
    expect(`${failure.message} ${String(failure.cause)}`).not.toMatch(new RegExp(`${secret}|${key}`));
    expect(seen).toEqual(["GET /sandboxes"]);
  },
);

const listed = (name: string) => ({
  path: `/d/${name}`,
  type: "file",
  size: 1,
  mode: 420,
  uid: 0,
  gid: 0,
  modified_ms: 1.5,
});

it("a long listing is read in turns", async () => {
  const names = Array.from({ length: 30_000 }, (_, index) => String(index).padStart(5, "0"));
  const answer = Buffer.from(JSON.stringify({ entries: names.map(listed) }));
  const { provider, spec, sandbox } = await backend({
    "GET /sandboxes/:id/files/list": (_request, response) => response.end(answer),
  });
  await provider.check(soon());
  await provider.spawn(spec, soon());
  using watch = new TurnWatch();
  const entries = await sandbox().files.list("/d", { ...soon(30_000), depth: 1 });
  expect(entries.map(({ name }) => name)).toEqual(names);
  await pause(50);
  expect(watch.longestMs).toBeLessThan(longestTurnMs);
});

it.each([
  ["of lists", "[]"],
  ["of nothing that is meant", "{}"],
  ["of one thing without end", `{"path":"${"a".repeat(1_048_576)}"}`],
  ["of things of many things", `{"path":[${"0,".repeat(30_000)}0]}`],
])("60 MiB of a list %s are refused where it begins", async (_title, thing) => {
  const piece = Buffer.from(`${thing},`.repeat(Math.ceil(1_048_576 / (thing.length + 1))));
  let sent = 0;
  const many: Handler = (_request, response) => {
    response.write(`{"entries":[`);
    const more = () => {
      for (let goesOn = true; goesOn && !response.destroyed && sent < 60; sent += 1)
        goesOn = response.write(piece);
      if (sent === 60) response.end("0]}");
    };
    response.on("drain", more);
    more();
  };
  const { provider, spec, sandbox } = await backend({ "GET /sandboxes/:id/files/list": many });
  await provider.check(soon());
  await provider.spawn(spec, soon());
  using watch = new TurnWatch();
  const failure = await failureOf(sandbox().files.list("/d", { ...soon(), depth: 1 }));
  expect(failure).toBeInstanceOf(ProviderError);
  expect(failure.message).toContain("could not be understood");
  expect(sent).toBeLessThan(20);
  await pause(50);
  expect(watch.longestMs).toBeLessThan(longestTurnMs);
});

it("no more of a listing is read than there is memory for", async () => {
  const piece = Buffer.from(`${JSON.stringify(listed("a".repeat(200)))},`.repeat(4_000));
  let sent = 0;
  const { provider, spec, sandbox } = await backend({
    "GET /sandboxes/:id/files/list": (_request, response) => {
      response.write(`{"entries":[`);
      const more = () => {
        for (let goesOn = true; goesOn && !response.destroyed && sent < 24; sent += 1)
          goesOn = response.write(piece);
        if (sent === 24) response.end(`${JSON.stringify(listed("b"))}]}`);
      };
      response.on("drain", more);
      more();
    },
  });
  await provider.check(soon());
  await provider.spawn(spec, soon());
  const asked: number[] = [];
  const { files } = sandbox();
  const room = async (bytes: number) => {
    asked.push(bytes);
    if (bytes > 1_048_576) throw new Unavailable("no memory");
  };
  for (const ask of [
    () => files.list("/d", { ...soon(), depth: 1, room }),
    () => files.glob("/d/a*", { ...soon(), room }),
  ]) {
    sent = 0;
    asked.length = 0;
    expect((await failureOf(ask())).message).toBe("no memory");
    expect(asked.at(-1)).toBeLessThan(2 * 1_048_576);
    // What the connection holds comes on top.
    expect(sent).toBeLessThan(18);
  }
});

it("of a list what does not lie below the folder is left out, and what no file can have is brought back to what it can", async () => {
  const odd = { ...listed("far"), modified_ms: 1e300, size: 1e300 };
  const outside = ["../../etc", "a/../b", "a/..", ".", "", "a\0"].map(listed);
  const { provider, spec, sandbox } = await backend({
    "GET /sandboxes/:id/files/list": json({ entries: [...outside, odd, { ...listed("x"), path: "/dx" }] }),
    "GET /sandboxes/:id/files/stat": json({ ...odd, modified_ms: -1e300 }),
  });
  await provider.check(soon());
  await provider.spawn(spec, soon());
  const { files } = sandbox();
  const [only, ...others] = await files.list("/d", { ...soon(), depth: 0 });
  expect(others).toEqual([]);
  expect(only).toMatchObject({ path: "/d/far", size: Number.MAX_SAFE_INTEGER });
  expect(only?.modifiedAt.toISOString()).toBe("+275760-09-13T00:00:00.000Z");
  expect((await files.stat("/d/far", soon())).modifiedAt.toISOString()).toBe("-271821-04-20T00:00:00.000Z");
});

it("slashes that a backend adds to paths of a list are none of theirs", async () => {
  const { provider, spec, sandbox } = await backend({
    "GET /sandboxes/:id/files/list": json({ entries: ["a/", "/b", "c//d/"].map(listed) }),
  });
  await provider.check(soon());
  await provider.spawn(spec, soon());
  const entries = await sandbox().files.list("/d/", { ...soon(), depth: 0 });
  expect(entries.map(({ name, path }) => [name, path])).toEqual([
    ["a", "/d/a"],
    ["b", "/d/b"],
    ["d", "/d/c/d"],
  ]);
});

it.each([
  ["small lines of output", '{"type":"stdout","data":"Lg=="}\n'],
  ["empty lines", "\n"],
  ["lines of a kind that is not known", '{"type":"x"}\n'],
])(
  "what comes of commands is read in turns: %s",
  async (_title, line) => {
    const lines = Buffer.from(line.repeat(Math.floor(1_048_576 / line.length)));
    const { provider, spec, sandbox } = await backend({
      "POST /sandboxes/:id/execs": (_request, response) => {
        response.write(events(started));
        response.write(lines);
        response.end(events({ type: "exit", exit_code: 0 }));
      },
    });
    await provider.spawn(spec, soon());
    using watch = new TurnWatch();
    const { execs } = sandbox();
    const ends = Array.from({ length: 6 }, async () =>
      // Six megabytes in turns: a machine with much else to do takes longer than a command has.
      finish(await execs.start(shell("true", { timeoutMs: 600_000 }), soon(60_000))),
    );
    for (const { exit } of await Promise.all(ends)) expect(exit.exitCode).toBe(0);
    await pause(50);
    expect(watch.longestMs).toBeLessThan(longestTurnMs);
  },
  120_000,
);

/** A backend in a thread of its own, as fast as it is read: every file is one of `size` bytes, in chunks of one. */
const chunkedBackend = `
  const { createServer } = require("node:http");
  const { parentPort, workerData: { id, size } } = require("node:worker_threads");
  const file = { path: "/f", type: "file", size, mode: 0o644, uid: 0, gid: 0, modified_ms: 0 };
  const said = { status: "ok", capabilities: ["files"], id, state: "running", sandboxes: [], ...file };
  const chunks = Buffer.from("1\\r\\nx\\r\\n".repeat(10_000));
  createServer((request, response) => {
    if (!/files[?]/.test(request.url)) return request.resume().on("end", () => response.end(JSON.stringify(said)));
    response.flushHeaders();
    let left = size;
    const more = () => {
      while (left > 0) {
        left -= 10_000;
        if (!response.socket.write(chunks)) return response.socket.once("drain", more);
      }
      response.end();
    };
    more();
  }).listen(0, "127.0.0.1", function () { parentPort.postMessage(this.address().port); });`;

it("answers in chunks of a byte keep nobody waiting for the sum of them", async () => {
  const size = 60_000;
  const { spec } = await backend();
  const worker = new Worker(chunkedBackend, { eval: true, workerData: { id: spec.runtimeId, size } });
  closing.push(() => worker.terminate());
  const [port] = (await once(worker, "message")) as [number];
  const provider = providerOf(`http://127.0.0.1:${port}`, { timeoutMs: 30_000 });
  closing.unshift(() => provider[Symbol.asyncDispose]());
  await provider.check(soon());
  await provider.spawn(spec, soon());
  const { files } = provider.sandbox(spec.runtimeId);
  using watch = new TurnWatch();
  const bodies = Array.from({ length: 16 }, async () => {
    const { body } = await files.read("/f", soon(60_000));
    expect(await collect(body)).toHaveLength(size);
  });
  await Promise.all(bodies);
  await pause(50);
  expect(watch.longestMs).toBeLessThan(longestTurnMs);
}, 60_000);

it("of what is said of a command's end a beginning is kept", async () => {
  let end = {};
  const { provider, spec, sandbox } = await backend({
    "POST /sandboxes/:id/execs": (_request, response) =>
      response.end(events(started, { type: "exit", ...end })),
  });
  await provider.spawn(spec, soon());
  const exitOf = async (said: object) => {
    end = said;
    return (await finish(await sandbox().execs.start(shell("true"), soon()))).exit;
  };
  const long = "x".repeat(100_000);
  expect((await exitOf({ exit_code: 127, start_error: long })).startError).toBe(`${"x".repeat(1_000)}…`);
  expect((await exitOf({ exit_code: 137, signal: long })).signal).toBe(`${"x".repeat(16)}…`);
  const before = await heldBytes();
  const kept: unknown[] = [];
  for (let count = 0; count < 20; count += 1)
    kept.push((await exitOf({ exit_code: 127, start_error: "y".repeat(390_000) })).startError);
  expect((await heldBytes()) - before).toBeLessThan(4 * 1_048_576);
  expect(new Set(kept)).toEqual(new Set([`${"y".repeat(1_000)}…`]));
});

it("why a program could not be started stands in standard error where nothing else does", async () => {
  let output: unknown[] = [];
  const end = { type: "exit", exit_code: 127, start_error: 'exec "nosuch": not found' };
  const { provider, spec, sandbox } = await backend({
    "POST /sandboxes/:id/execs": (_request, response) => response.end(events(started, ...output, end)),
  });
  await provider.spawn(spec, soon());
  const stderrOf = async () => (await finish(await sandbox().execs.start(shell("true"), soon()))).stderr;
  expect(await stderrOf()).toBe('exec "nosuch": not found\n');
  output = [{ type: "stderr", data: Buffer.from("sh: nosuch: not found\n").toString("base64") }];
  expect(await stderrOf()).toBe("sh: nosuch: not found\n");
});

it("an image's name that is none is not kept", async () => {
  for (const image of ["i".repeat(1_000), "one\nline"]) {
    const { provider, spec } = await backend({
      "POST /sandboxes": (_request, response, body) =>
        response.end(JSON.stringify({ id: JSON.parse(body).id, state: "running", image })),
    });
    expect((await provider.spawn(spec, soon())).image).toBe(spec.image);
  }
});

const file = { path: "/f", type: "file", size: 2, mode: 420, uid: 0, gid: 0, modified_ms: 0 };
const body = () => chunks("text");
type Made = Awaited<ReturnType<typeof backend>>;
/** Every call of the backend, how it comes to be made, and whether its answer is read: what says nothing may say anything. */
const calls: Record<string, { isRead: boolean; ask: (made: Made) => Promise<unknown> }> = {
  "GET /sandboxes": { isRead: true, ask: ({ provider }) => provider.inventory(soon()) },
  "POST /sandboxes": {
    isRead: true,
    ask: ({ provider, spec }) => provider.spawn({ ...spec, runtimeId: randomIds.runtimeId() }, soon()),
  },
  "GET /sandboxes/:id": {
    isRead: true,
    ask: ({ provider }) => provider.adopt(randomIds.runtimeId(), soon()),
  },
  "DELETE /sandboxes/:id": {
    isRead: false,
    ask: ({ provider, spec }) => provider.destroy(spec.runtimeId, soon()),
  },
  "PUT /sandboxes/:id/expiry": { isRead: false, ask: (made) => made.sandbox().setExpiry(1_000, soon()) },
  "POST /sandboxes/:id/execs": {
    isRead: true,
    ask: (made) => made.sandbox().execs.start(shell("true"), soon()),
  },
  "GET /sandboxes/:id/files/stat": { isRead: true, ask: (made) => made.sandbox().files.stat("/f", soon()) },
  "GET /sandboxes/:id/files/list": {
    isRead: true,
    ask: (made) => made.sandbox().files.list("/", { ...soon(), depth: 1 }),
  },
  "GET /sandboxes/:id/files": {
    isRead: true,
    ask: async (made) => {
      made.wrong["GET /sandboxes/:id/files/stat"] = json({ ...file, size: 500 });
      return collect((await made.sandbox().files.read("/f", soon())).body);
    },
  },
  "PUT /sandboxes/:id/files": {
    isRead: true,
    ask: (made) => made.sandbox().files.write("/f", body(), soon()),
  },
  "DELETE /sandboxes/:id/files": {
    isRead: false,
    ask: (made) => made.sandbox().files.remove("/f", { ...soon(), recursive: true }),
  },
  "POST /sandboxes/:id/files/move": {
    isRead: false,
    ask: (made) => made.sandbox().files.move("/f", "/g", soon()),
  },
  "POST /sandboxes/:id/files/chmod": {
    isRead: false,
    ask: (made) => made.sandbox().files.chmod("/f", 0o600, soon()),
  },
  "POST /sandboxes/:id/files/mkdir": {
    isRead: true,
    ask: (made) => made.sandbox().files.mkdir("/d", { ...soon(), parents: true }),
  },
};
/** What a backend does in place of an answer, and what clients are told; of an answer that is not read null. */
const failures: Record<string, { answer: Handler; read: string; unread: string | null; after?: number }> = {
  "hangs before its answer": { answer: () => undefined, read: "unavailable", unread: "unavailable" },
  "answers slower than anybody waits": {
    answer: (_request, response) => {
      response.writeHead(200);
      const drip = setInterval(() => response.write(" "), 10);
      response.on("close", () => clearInterval(drip));
    },
    read: "unavailable",
    unread: null,
  },
  "begins a refusal and hangs": {
    answer: (_request, response) => void response.writeHead(500).write('{"error":'),
    read: "unavailable",
    unread: "unavailable",
  },
  "answers half": {
    answer: (_request, response) => {
      response.writeHead(200, { "content-length": "500" }).write('{"id":');
      setImmediate(() => response.destroy());
    },
    read: "unavailable",
    unread: null,
  },
  "answers a page": { answer: html, read: "provider_error", unread: null },
  "breaks the connection": {
    answer: (request) => request.socket.destroy(),
    read: "unavailable",
    unread: "unavailable",
  },
  "answers 429": {
    answer: json({ error: secret }, 429, { "retry-after": "7" }),
    read: "unavailable",
    unread: "unavailable",
    after: 7,
  },
  "answers 500": { answer: json({ error: secret }, 500), read: "provider_error", unread: "provider_error" },
};
/** An upload, and the body of a file, have the deadline of whoever sends or reads them. */
const ownDeadline = new Set(["PUT /sandboxes/:id/files", "GET /sandboxes/:id/files"]);
const waits = new Set([
  "hangs before its answer",
  "answers slower than anybody waits",
  "begins a refusal and hangs",
]);

it.each(Object.keys(failures))("a backend that %s, in place of each of its answers", async (name) => {
  const { answer, read, unread, after } = failures[name] ?? { answer: html, read: "", unread: "" };
  const asked = Object.entries(calls).filter(([call]) => !(ownDeadline.has(call) && waits.has(name)));
  const outcomes = await Promise.all(
    asked.map(async ([call, { ask }]) => {
      const made = await backend({}, { timeoutMs: waits.has(name) ? 300 : 5_000 });
      await made.provider.check(soon());
      await made.provider.spawn(made.spec, soon());
      made.wrong[call] = answer;
      const outcome = await ask(made).then(
        () => "done",
        (error: DomainError) => {
          expect(`${error.message} ${String(error.cause)}`).not.toMatch(new RegExp(`${secret}|${key}`));
          return [error.code, ...(after === undefined ? [] : [error.retryAfterS])].join(" ");
        },
      );
      delete made.wrong[call];
      await eventually(() => made.provider.destroy(made.spec.runtimeId, soon()));
      expect([...made.sandboxes.keys()]).not.toContain(made.spec.runtimeId);
      return [call, outcome];
    }),
  );
  const told = (code: string | null) => (code === null ? "done" : [code, after].filter(Boolean).join(" "));
  expect(Object.fromEntries(outcomes)).toEqual(
    Object.fromEntries(asked.map(([call, { isRead }]) => [call, told(isRead ? read : unread)])),
  );
});

it("a file's body that is let go of before it was read keeps no connection", async () => {
  const ended = Promise.withResolvers<void>();
  const made = await backend({
    "GET /sandboxes/:id/files/stat": json({ ...file, size: 5_000_000 }),
    "GET /sandboxes/:id/files": (_request, response) => {
      response.on("close", ended.resolve);
      response.write(Buffer.alloc(2_000_000));
    },
  });
  await made.provider.check(soon());
  await made.provider.spawn(made.spec, soon());
  const { body } = await made.sandbox().files.read("/f", soon(60_000));
  body.destroy();
  await ended.promise;
});

const tenBytes = json({ path: "/f", type: "file", size: 10, mode: 420, uid: 0, gid: 0, modified_ms: 0 });

it("a read that has no answer in its time keeps no connection", async () => {
  const { provider, spec, sandbox, server } = await backend(
    { "GET /sandboxes/:id/files/stat": tenBytes, "GET /sandboxes/:id/files": () => undefined },
    { timeoutMs: 500 },
  );
  await provider.check(soon());
  await provider.spawn(spec, soon());
  for (let tries = 0; tries < 3; tries += 1)
    expect(await failureOf(sandbox().files.read("/f", soon()))).toBeInstanceOf(Unavailable);
  const connections = promisify(server.getConnections.bind(server));
  await eventually(async () => expect(await connections()).toBeLessThan(3));
});

/** From now on connections of before are reset by what is sent over them. */
const resetKept = (server: Server) => {
  const fresh = new WeakSet<object>();
  server.on("connection", (socket) => fresh.add(socket));
  const [answer] = server.listeners("request") as ((...given: unknown[]) => void)[];
  server.removeAllListeners("request").on("request", (request, response) => {
    if (fresh.has(request.socket)) answer?.(request, response);
    else request.socket.resetAndDestroy();
  });
};

it("connections that are kept and were closed fail no call, however many there are", async () => {
  const together = Promise.withResolvers<void>();
  let asked = 0;
  const { provider, spec, sandbox, server } = await backend({
    "GET /sandboxes/:id/files/stat": (...call) => {
      asked += 1;
      if (asked === 8) together.resolve();
      void together.promise.then(() => tenBytes(...call));
    },
  });
  await provider.check(soon());
  await provider.spawn(spec, soon());
  await Promise.all(Array.from({ length: 8 }, () => sandbox().files.stat("/f", soon())));
  resetKept(server);
  for (let calls = 0; calls < 4; calls += 1) await sandbox().files.stat("/f", soon());
});

it.each<[string, number, (sandbox: SandboxOperations) => Promise<unknown>]>([
  ["POST /sandboxes/:id/execs", 409, ({ execs }) => execs.start(shell("true"), soon())],
  ["POST /sandboxes/:id/files/mkdir", 409, ({ files }) => files.mkdir("/d", { ...soon(), parents: false })],
  ["POST /sandboxes/:id/files/move", 404, ({ files }) => files.move("/a", "/b", soon())],
  ["DELETE /sandboxes/:id/files", 404, ({ files }) => files.remove("/d", { ...soon(), recursive: false })],
])(
  "%s that was carried out when its connection broke is not told as refused (%i)",
  async (name, status, call) => {
    const { provider, spec, sandbox, wrong, seen } = await backend();
    await provider.spawn(spec, soon());
    let times = 0;
    wrong[name] = (request, response, body) => {
      times += 1;
      if (times === 1) request.socket.resetAndDestroy();
      else json({}, status)(request, response, body);
    };
    // Connections are kept.
    await Promise.all(Array.from({ length: 8 }, () => provider.check(soon())));
    const { code, message } = await failureOf(call(sandbox()));
    expect({ code, message, times }).toEqual({
      code: "unavailable",
      message: expect.stringContaining("whether that was done is not known"),
      times: 2,
    });
    // Nobody follows a command that may run.
    if (name.endsWith("execs"))
      await eventually(() => expect(seen).toContain("DELETE /sandboxes/:id/execs/:exec"));
  },
);

it("a file that stands still is Unavailable after the configured time, however slowly it is read", async () => {
  const pieces = ["12345", "67890"];
  const { provider, spec, sandbox } = await backend(
    {
      "GET /sandboxes/:id/files/stat": tenBytes,
      "GET /sandboxes/:id/files": (_request, response) => response.write(pieces.shift() ?? ""),
    },
    { timeoutMs: 500 },
  );
  await provider.check(soon());
  await provider.spawn(spec, soon());
  const { body } = await sandbox().files.read("/f", soon());
  const parts = body[Symbol.asyncIterator]();
  expect(String((await parts.next()).value)).toBe("12345");
  const { message } = await failureOf(Promise.resolve(parts.next()));
  expect(message).toBe("the backend did not read a file within 500ms");
});

it.each<[string, Handler]>([
  ["drips", (_request, response) => void setInterval(() => response.write("x"), 10).unref()],
  ["floods", endless],
])("an answer that nobody reads and that %s without end keeps no connection", async (_title, handler) => {
  let open = 0;
  const made = await backend(
    {
      "PUT /sandboxes/:id/expiry": (request, response, text) => {
        open += 1;
        response.on("close", () => {
          open -= 1;
        });
        response.writeHead(200);
        handler(request, response, text);
      },
    },
    { timeoutMs: 300 },
  );
  await made.provider.check(soon());
  await made.provider.spawn(made.spec, soon());
  for (let count = 0; count < 5; count += 1) await made.sandbox().setExpiry(60_000, soon());
  await eventually(() => expect(open).toBe(0));
});

it("an upload to a backend that hangs ends with its caller", async () => {
  const made = await backend({ "PUT /sandboxes/:id/files": () => undefined });
  await made.provider.check(soon());
  await made.provider.spawn(made.spec, soon());
  const reason = new Error("waited enough");
  const stop = new AbortController();
  setTimeout(() => stop.abort(reason), 100);
  await expect(made.sandbox().files.write("/f", body(), stop)).rejects.toBe(reason);
});

it("an upload that a backend says to be empty is not told as written", async () => {
  const { provider, spec, sandbox } = await backend({
    "PUT /sandboxes/:id/files": json({ ...listed("f"), size: 0 }),
  });
  await provider.check(soon());
  await provider.spawn(spec, soon());
  const failure = await failureOf(sandbox().files.write("/d/f", body(), soon()));
  expect(failure).toBeInstanceOf(ProviderError);
  expect(failure.message).toContain("4 bytes");
});

it("a move that is refused names where the other thing stands", async () => {
  let status = 409;
  const { provider, spec, sandbox } = await backend({
    "POST /sandboxes/:id/files/move": (...call) => json({}, status)(...call),
  });
  await provider.check(soon());
  await provider.spawn(spec, soon());
  const told = async () => (await failureOf(sandbox().files.move("/from", "/to", soon()))).message;
  expect(await told()).toMatch(/^"\/to" is a directory/);
  status = 400;
  expect(await told()).toMatch(/^"\/from" cannot be moved to "\/to"/);
  status = 404;
  expect(await told()).toBe('"/from" does not exist in this sandbox');
});

it("an upload that a backend has whole and does not answer is Unavailable after the configured time", async () => {
  const made = await backend({ "PUT /sandboxes/:id/files": () => undefined }, { timeoutMs: 150 });
  await made.provider.check(soon());
  await made.provider.spawn(made.spec, soon());
  async function* slow() {
    for (const text of ["a", "b"]) {
      await pause(200);
      yield Buffer.from(text);
    }
  }
  const failure = await failureOf(made.sandbox().files.write("/f", slow(), soon(3_000)));
  expect(failure).toBeInstanceOf(Unavailable);
  expect(failure.message).toBe("the backend did not write a file within 150ms");
});

it("what a backend no longer announces is refused, and asked for again once it is announced again", async () => {
  const made = await backend();
  await made.provider.check(soon());
  await made.provider.spawn(made.spec, soon());
  made.wrong["GET /health"] = json({ status: "ok", capabilities: [] });
  made.wrong["GET /sandboxes/:id/files/stat"] = json(file);
  await made.provider.check(soon());
  expect(made.provider.capabilities.has("files")).toBe(false);
  await expect(made.sandbox().files.stat("/f", soon())).rejects.toThrow('capability "files"');
  made.wrong["GET /health"] = html;
  expect(await made.provider.check(soon())).toMatchObject({ healthy: false });
  delete made.wrong["GET /health"];
  await made.provider.check(soon());
  expect(await made.sandbox().files.stat("/f", soon())).toMatchObject({ type: "file" });
});

it.each([
  ["7", 7],
  ["999999999", 3_600],
  ["soon", 5],
])("429 with Retry-After %s is Unavailable for %i seconds", async (header, seconds) => {
  const { provider } = await backend({ "GET /sandboxes": json({}, 429, { "retry-after": header }) });
  const failure = await failureOf(provider.inventory(soon()));
  expect(failure).toBeInstanceOf(Unavailable);
  expect(failure.retryAfterS).toBe(seconds);
});

it("a backend that hangs, or is not there, is Unavailable after the configured time", async () => {
  const { provider, server } = await backend({ "GET /sandboxes": () => undefined }, { timeoutMs: 100 });
  const silent = await failureOf(provider.inventory(soon()));
  expect(silent).toBeInstanceOf(Unavailable);
  expect(silent.message).toContain("within 100ms");
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
  expect(await failureOf(provider.inventory(soon()))).toBeInstanceOf(Unavailable);
  expect(await provider.check(soon())).toMatchObject({ healthy: false });
});

it("a spawn that is answered under another id fails and is ended", async () => {
  const { provider, spec, seen } = await backend({
    "POST /sandboxes": json({ id: "another", state: "running" }),
  });
  await expect(provider.spawn(spec, soon())).rejects.toThrow("under another id");
  // There is none of the id that was asked for, which the backend itself says.
  expect(seen).toEqual(["POST /sandboxes", "DELETE /sandboxes/:id", "GET /health"]);
});

it("a spawn that was carried out too late is gone once its destroy has resolved", async () => {
  const made = await backend({}, { timeoutMs: 100 });
  const carriedOut = Promise.withResolvers<unknown>();
  made.wrong["POST /sandboxes"] = (_request, _response, body) => {
    const { id } = JSON.parse(body) as { id: string };
    setTimeout(() => carriedOut.resolve(made.sandboxes.set(id, { id, labels: {} })), 300);
  };
  await expect(made.provider.spawn(made.spec, soon())).rejects.toThrow(Unavailable);
  await made.provider.destroy(made.spec.runtimeId, soon());
  await carriedOut.promise;
  expect(made.sandboxes.size).toBe(0);
});

it("a command that was started too late is ended, unless it was started again", async () => {
  const { provider, spec, sandbox, wrong, seen } = await backend({}, { timeoutMs: 200, silenceMs: 20_000 });
  const running = new Set<string>();
  const kill = "DELETE /sandboxes/:id/execs/:exec";
  wrong[kill] = (request, response) =>
    response.writeHead(running.delete(request.url?.split("/").at(-1) ?? "") ? 200 : 404).end();
  const startIn = (ms: number): Handler => {
    return (_request, response, body) => {
      const { exec_id: id } = JSON.parse(body) as { exec_id: string };
      setTimeout(() => running.add(id) && response.write(events(started)), ms);
    };
  };
  await provider.check(soon());
  await provider.spawn(spec, soon());
  wrong["POST /sandboxes/:id/execs"] = startIn(400);
  const twice = shell("true");
  for (const each of [shell("true"), twice])
    expect(await failureOf(sandbox().execs.start(each, soon()))).toBeInstanceOf(Unavailable);
  wrong["POST /sandboxes/:id/execs"] = startIn(0);
  await sandbox().execs.start(twice, soon());
  await pause(2_500);
  expect([...running]).toEqual([twice.execId]);
  expect(seen.filter((call) => call === kill).length).toBeGreaterThan(1);
});

it("a command that was begun by a start without an answer is ended when it is started again", async () => {
  const { provider, spec, sandbox, wrong } = await backend({}, { timeoutMs: 200 });
  const running = new Set<string>();
  wrong["DELETE /sandboxes/:id/execs/:exec"] = (request, response) =>
    response.writeHead(running.delete(request.url?.split("/").at(-1) ?? "") ? 200 : 404).end();
  const taken = new Set<string>();
  wrong["POST /sandboxes/:id/execs"] = (_request, response, body) => {
    const { exec_id: id } = JSON.parse(body) as { exec_id: string };
    if (taken.has(id)) response.writeHead(409).end();
    else setTimeout(() => running.add(id), 600);
    taken.add(id);
  };
  await provider.spawn(spec, soon());
  const command = shell("true");
  for (const each of [command, command])
    expect(await failureOf(sandbox().execs.start(each, soon()))).toBeInstanceOf(Unavailable);
  await eventually(() => expect([...running]).toEqual([command.execId]));
  await eventually(() => expect([...running]).toEqual([]));
});

it("a command that is lost, or whose start had no answer, is ended once the backend takes calls again", {
  timeout: 30_000,
}, async () => {
  const { provider, spec, sandbox, wrong } = await backend(
    { "GET /health": json({ status: "ok", capabilities: [] }) },
    { timeoutMs: 200 },
  );
  const refused = new Map<string, number>();
  const killed: string[] = [];
  wrong["DELETE /sandboxes/:id/execs/:exec"] = (request, response) => {
    const id = request.url?.split("/").at(-1) ?? "";
    const times = refused.get(id) ?? 0;
    refused.set(id, times + 1);
    if (times === 3) killed.push(id);
    response.writeHead(times < 3 ? 503 : 200).end();
  };
  wrong["POST /sandboxes/:id/execs"] = (_request, response) => {
    response.write(events(started));
    setTimeout(() => response.destroy(), 20);
  };
  await provider.spawn(spec, soon());
  const cut = shell("true");
  expect((await finish(await sandbox().execs.start(cut, soon()))).exit).toMatchObject({ reason: "lost" });
  wrong["POST /sandboxes/:id/execs"] = () => undefined;
  const unanswered = shell("true");
  expect(await failureOf(sandbox().execs.start(unanswered, soon()))).toBeInstanceOf(Unavailable);
  await vi.waitFor(() => expect(killed).toEqual([cut.execId, unanswered.execId]), { timeout: 15_000 });
});

it("of very many starts that failed each is looked for once, and some again", async () => {
  const { provider, spec, sandbox, wrong } = await backend();
  const looks = new Map<string | undefined, number>();
  wrong["POST /sandboxes/:id/execs"] = json({}, 503);
  wrong["DELETE /sandboxes/:id/execs/:exec"] = ({ url }, response) => {
    looks.set(url, (looks.get(url) ?? 0) + 1);
    response.writeHead(503).end();
  };
  await provider.spawn(spec, soon());
  const { execs } = sandbox();
  for (let times = 0; times < 300; times += 1)
    await expect(execs.start(shell("true"), soon())).rejects.toThrow(ProviderError);
  await eventually(() => expect(looks.size).toBe(300));
  await pause(1_500);
  expect([...looks.values()].filter((times) => times > 1)).toHaveLength(256);
});

it("of very many commands that were lost each is killed once, and some again", async () => {
  const { provider, spec, sandbox, wrong } = await backend();
  const kills = new Map<string | undefined, number>();
  wrong["POST /sandboxes/:id/execs"] = (_request, response) => response.end(`${events(started)}nothing\n`);
  wrong["DELETE /sandboxes/:id/execs/:exec"] = ({ url }, response) => {
    kills.set(url, (kills.get(url) ?? 0) + 1);
    response.writeHead(503).end();
  };
  await provider.spawn(spec, soon());
  const { execs } = sandbox();
  for (let times = 0; times < 300; times += 1)
    expect((await finish(await execs.start(shell("true"), soon()))).exit.reason).toBe("lost");
  expect(kills.size).toBe(300);
  await pause(1_500);
  expect([...kills.values()].filter((times) => times > 1)).toHaveLength(256);
});

it("a sandbox that vanishes between calls is told, and its calls fail as gone", async () => {
  const { provider, spec, sandboxes } = await backend();
  const told = Promise.withResolvers<string>();
  provider.onExit((runtimeId) => told.resolve(runtimeId));
  await provider.spawn(spec, soon());
  const { execs } = provider.sandbox(spec.runtimeId);
  sandboxes.clear();
  expect(await told.promise).toBe(spec.runtimeId);
  await expect(execs.start(shell("true"), soon())).rejects.toThrow(RuntimeGone);
});

it("a 404 of what stands before the backend costs neither the sandbox nor its commands", async () => {
  const notFound = json(`<html>${secret}</html>`, 404);
  const made = await backend();
  const { provider, spec, wrong, sandbox } = made;
  let first: ServerResponse | undefined;
  wrong["POST /sandboxes/:id/execs"] = (_request, response) => {
    first = response;
    response.write(events(started));
  };
  await provider.check(soon());
  await provider.spawn(spec, soon());
  const view = await sandbox().execs.start(shell("true"), soon());
  const away = ["GET /health", "GET /sandboxes/:id", "GET /sandboxes/:id/execs/:exec", "GET /sandboxes"];
  away.push("POST /sandboxes", "GET /sandboxes/:id/files/stat");
  for (const call of away) wrong[call] = notFound;
  first?.destroy();
  // Neither a file nor an image is missing because of it.
  const other = { ...spec, runtimeId: randomIds.runtimeId() };
  for (const call of [() => sandbox().files.stat("/f", soon()), () => provider.spawn(other, soon())])
    expect(await failureOf(call())).toMatchObject({ code: "unavailable", retryAfterS: 5 });
  await pause(300);
  for (const call of away) delete wrong[call];
  wrong["GET /sandboxes/:id/execs/:exec"] = (_request, response) =>
    response.end(events(started, { type: "exit", exit_code: 3 }));
  expect((await finish(view)).exit).toMatchObject({ reason: "exited", exitCode: 3 });
  expect(await provider.inventory(soon())).toMatchObject([{ runtimeId: spec.runtimeId }]);
});

it("input that is answered 404 by what stands before the backend is sent again", async () => {
  const { provider, spec, wrong, sandbox } = await backend({}, { silenceMs: 20_000 });
  let first: ServerResponse | undefined;
  wrong["POST /sandboxes/:id/execs"] = (_request, response) => {
    first = response;
    response.write(events(started));
  };
  const stdin = "POST /sandboxes/:id/execs/:exec/stdin";
  let refused = 0;
  wrong[stdin] = (request, response, body) => {
    refused += 1;
    json({}, 404)(request, response, body);
  };
  wrong["GET /health"] = json({}, 404);
  await provider.spawn(spec, soon());
  const view = await sandbox().execs.start(shell("cat", { stdin: true }), soon());
  await view.writeStdin(Buffer.from("hello"));
  await eventually(() => expect(refused).toBeGreaterThan(1));
  let taken = "";
  wrong[stdin] = (request, response, body) => {
    taken += body;
    response.end("{}");
    if (request.url?.includes("close=true")) first?.end(events({ type: "exit", exit_code: 0 }));
  };
  await eventually(() => expect(taken).toBe("hello"));
  delete wrong["GET /health"];
  await view.closeStdin();
  expect((await finish(view)).exit).toMatchObject({ reason: "exited", exitCode: 0 });
});

it("a 404 of what stands before the backend is not told as a sandbox or a command that ended", async () => {
  const { provider, spec, wrong, sandbox } = await backend({}, { silenceMs: 20_000 });
  let first: ServerResponse | undefined;
  wrong["POST /sandboxes/:id/execs"] = (_request, response) => {
    first = response;
    response.write(events(started));
  };
  await provider.check(soon());
  await provider.spawn(spec, soon());
  const view = await sandbox().execs.start(shell("true"), soon());
  await using another = providerOf(provider.place.split(" ")[0] ?? "", {});
  const away = ["/health", "/sandboxes/:id"].map((path) => `GET ${path}`);
  away.push("DELETE /sandboxes/:id", "POST /sandboxes/:id/execs/:exec/signal");
  const kill = "DELETE /sandboxes/:id/execs/:exec";
  let kills = 0;
  wrong[kill] = (request, response, body) => {
    kills += 1;
    json({}, 404)(request, response, body);
  };
  for (const call of away) wrong[call] = json({}, 404);
  let looks = 0;
  wrong["GET /health"] = (request, response, body) => {
    if (kills > 0) looks += 1;
    json({}, 404)(request, response, body);
  };
  for (const call of [
    () => another.destroy(spec.runtimeId, soon()),
    () => another.adopt(spec.runtimeId, soon()),
    () => sandbox().execs.signal(view.execId, 15, soon()),
  ])
    expect(await failureOf(call())).toMatchObject({ code: "unavailable", retryAfterS: 5 });
  // A kill is tried again.
  const killed = sandbox().execs.kill(view.execId, { ...soon(), reason: "cancelled" });
  await eventually(() => expect({ kills, looks }).toEqual({ kills: 1, looks: 1 }));
  for (const call of away) delete wrong[call];
  wrong[kill] = (_request, response) => {
    kills += 1;
    response.end("{}");
    first?.end(events({ type: "exit", exit_code: 137, signal: "SIGKILL" }));
  };
  expect((await killed).exit).toMatchObject({ reason: "cancelled" });
  expect(kills).toBe(2);
});

it("a list that leaves sandboxes out by mistake loses none", async () => {
  const { provider, spec, seen } = await backend({ "GET /sandboxes": json({ sandboxes: [] }) });
  await provider.spawn(spec, soon());
  await eventually(() => expect(seen.filter((call) => call === "GET /sandboxes").length).toBeGreaterThan(2));
  expect(await provider.inventory(soon())).toEqual([{ runtimeId: spec.runtimeId, state: "running" }]);
});

it.each<[string, Handler]>([
  [
    "a line without end",
    (_request, response) =>
      response.write(`${events(started)}{"type":"stdout","data":"${"A".repeat(900_000)}`),
  ],
  [
    "output that is no base64",
    (_request, response) => response.end(events(started, { type: "stdout", data: "%%" })),
  ],
  ["a line that is no JSON", (_request, response) => response.end(`${events(started)}${secret}\n`)],
])(
  "a command whose stream has %s is lost, and killed, and the log and the console say why",
  async (_title, handler) => {
    const warn = vi.spyOn(silentLogger, "warn");
    const { provider, spec, seen } = await backend({ "POST /sandboxes/:id/execs": handler });
    await provider.check(soon());
    await provider.spawn(spec, soon());
    const view = await provider.sandbox(spec.runtimeId).execs.start(shell("true"), soon());
    expect((await finish(view)).exit.reason).toBe("lost");
    expect(seen).toContain("DELETE /sandboxes/:id/execs/:exec");
    // What follows the same stream again would meet the same.
    expect(seen).not.toContain("GET /sandboxes/:id/execs/:exec");
    const [fields] = warn.mock.lastCall as unknown as [{ error: string }];
    warn.mockRestore();
    expect(fields.error).toMatch(/^it /);
    expect(await provider.logs(spec.runtimeId, { lines: 10 })).toContainEqual(
      expect.stringContaining(`the stream of ${view.execId} could not be understood: ${fields.error}`),
    );
    expect(fields.error).not.toContain(secret);
  },
);

it("a stream that breaks, or stands still, is followed again from its last byte", async () => {
  const asked: (string | undefined)[] = [];
  const output = (text: string) => ({ Type: "stdout", Data: Buffer.from(text).toString("base64") });
  const { provider, spec } = await backend({
    "POST /sandboxes/:id/execs": (_request, response) => {
      response.write(events(started, output("one ")));
      setTimeout(() => response.destroy(), 20);
    },
    "GET /sandboxes/:id/execs/:exec": (request, response) => {
      asked.push(request.url?.split("?")[1]);
      if (asked.length === 1) response.write(events(started, output("two ")));
      else response.end(events(started, { type: "ping" }, output("three"), { type: "exit", exitCode: "3" }));
    },
  });
  await provider.check(soon());
  await provider.spawn(spec, soon());
  const view = await provider.sandbox(spec.runtimeId).execs.start(shell("true"), soon());
  const { stdout, exit } = await finish(view);
  expect({ stdout, exitCode: exit.exitCode, reason: exit.reason }).toEqual({
    stdout: "one two three",
    exitCode: 3,
    reason: "exited",
  });
  expect(asked).toEqual(["from=4", "from=8"]);
});

it("input that a backend did not take is sent again, and the command goes on", async () => {
  const refusals: Handler[] = [
    json({ error: secret }, 429, { "retry-after": "1" }),
    json({ error: secret }, 502),
    (_request, response) => response.destroy(),
  ];
  const took: [string | undefined, string][] = [];
  let end: () => void = () => undefined;
  const { provider, spec, sandbox } = await backend({
    "POST /sandboxes/:id/execs": (_request, response) => {
      response.write(events(started));
      const ping = setInterval(() => response.write(events({ type: "ping" })), 20);
      end = () => {
        clearInterval(ping);
        response.end(events({ type: "exit", exit_code: 0 }));
      };
    },
    "POST /sandboxes/:id/execs/:exec/stdin": (request, response, body) => {
      const refusal = refusals.shift();
      if (refusal !== undefined) {
        refusal(request, response, body);
        return;
      }
      took.push([request.url?.split("?")[1], body]);
      response.end("{}");
      if (request.url?.includes("close=true")) end();
    },
  });
  await provider.spawn(spec, soon());
  const view = await sandbox().execs.start(shell("cat", { stdin: true }), soon());
  await view.writeStdin(Buffer.from("hello"));
  await view.closeStdin();
  expect((await finish(view)).exit).toMatchObject({ reason: "exited", exitCode: 0 });
  expect(took).toEqual([
    ["offset=0", "hello"],
    ["offset=5&close=true", ""],
  ]);
});

it("a file that ends early fails its reader, and no words of the backend's reach a refusal", async () => {
  const file = { path: "/f", type: "file", size: "10", mode: 420, uid: 0, gid: 0, modifiedMs: 0 };
  const { provider, spec } = await backend({
    "GET /sandboxes/:id/files/stat": json(file),
    "GET /sandboxes/:id/files": (_request, response) => response.end("12345"),
    "PUT /sandboxes/:id/files": json({ error: secret }, 507),
  });
  await provider.check(soon());
  await provider.spawn(spec, soon());
  const { files } = provider.sandbox(spec.runtimeId);
  const { body } = await files.read("/f", soon());
  await expect(body.toArray()).rejects.toThrow("5 bytes early");
  const full = await failureOf(files.write("/f", chunks("text"), soon()));
  expect(full).toMatchObject({
    code: "resource_limit",
    details: { reason: "disk" },
    message: expect.not.stringContaining(secret),
  });
});

it.each([
  ["", 1_000],
  [", of a long page too", 100_000],
])(
  "what the backend says in a refusal is logged at debug, cut, and without the key%s",
  async (_title, length) => {
    const debug = vi.spyOn(silentLogger, "debug");
    const { provider } = await backend({ "GET /sandboxes": json(`${key} ${"x".repeat(length)}`, 401) });
    await expect(provider.inventory(soon())).rejects.toThrow("providers.custom.api_key");
    const [fields] = debug.mock.lastCall as unknown as [{ status: number; answer: string }];
    debug.mockRestore();
    expect(fields.status).toBe(401);
    expect(fields.answer).toMatch(/^"\[redacted\] x+$/);
    expect(fields.answer.length).toBe(300);
  },
);
