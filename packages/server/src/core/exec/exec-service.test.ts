import { expect, test, vi } from "vitest";
import { CallerGone, DeadlineExceeded, ShuttingDown } from "../../platform/deadline.ts";
import { silentLogger } from "../../platform/logger.ts";
import { BadRequest, Conflict, NotFound, RuntimeGone, Unavailable } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecInfo, ExecOperations, ExecView } from "../../ports/sandbox-operations.ts";
import { NoRoom } from "../answers/memory-budget.ts";
import { OperationMetrics } from "../diagnostics/operation-metrics.ts";
import type { RunningSandbox } from "../sandboxes/live-sandboxes.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { ExecService } from "./exec-service.ts";
import { exitOf, FakeSandbox, infoOf, settled } from "./testing/fake-sandbox.ts";
import { WholeInput } from "./whole-input.ts";

const made = "ex-aaaaaaaa" as ExecId;
const { signal } = new AbortController();

/** A service whose every start ends with `error`. */
function failingStarts(sandbox: FakeSandbox, error: Error): ExecService {
  const fail = () => Promise.reject(error);
  return serviceOf(sandbox, { start: fail, startDetached: fail });
}

function serviceOf(
  sandbox: FakeSandbox,
  operations: Partial<ExecOperations>,
  locate: () => Promise<RunningSandbox> = () => Promise.resolve(sandbox.target as RunningSandbox),
  findsAgain = true,
): ExecService {
  Object.assign(sandbox.target.operations.execs, operations);
  return new ExecService({
    sandboxes: {
      subscribe: (listener) => sandbox.subscribe(listener),
      locate,
    },
    events: { emit: () => undefined },
    ids: { execId: () => made },
    clock: new FakeClock(),
    logger: silentLogger,
    operations: new OperationMetrics({ clock: new FakeClock(), providers: [] }),
    limits: {
      deadlinesOf: () => ({ defaultTimeoutMs: 1_000, maxTimeoutMs: 1_000 }),
      maxOutputBytes: 1_000,
      disconnectGraceMs: 1_000,
    },
    findsAgain: () => findsAgain,
    answerDeadlineMs: 20,
  });
}

test.each(["get", "resize", "signal", "kill", "list"] as const)(
  "%s of a command does not wait for ever for a sandbox that stands still",
  async (operation) => {
    const sandbox = new FakeSandbox();
    const silent = (...args: unknown[]) =>
      new Promise<never>((_, reject) => {
        const { signal: ended } = args.at(-1) as { signal: AbortSignal };
        ended.addEventListener("abort", () => reject(ended.reason as Error));
      });
    using service = serviceOf(sandbox, { [operation]: silent });
    const calls = {
      get: () => service.get(sandbox.id, made, { signal }),
      resize: () => service.resize(sandbox.id, made, { cols: 80, rows: 24 }, { signal }),
      signal: () => service.signal(sandbox.id, made, "TERM", { signal }),
      kill: () => service.kill(sandbox.id, made, { signal }),
      list: () => service.list(sandbox.id, { signal }),
    };
    await expect(calls[operation]()).rejects.toThrow(DeadlineExceeded);
  },
);

test.each(["get", "resize", "signal", "kill", "list", "output", "writeStdin"] as const)(
  "%s of a command that meets the end of its sandbox is told that, not what its provider says",
  async (operation) => {
    const sandbox = new FakeSandbox();
    const ending = new Conflict("the sandbox is being destroyed");
    let ended = false;
    const ends = async () => {
      ended = true;
      throw new RuntimeGone("sandbox sb-1 has ended");
    };
    const locate = async () => {
      if (ended) throw ending;
      return sandbox.target as RunningSandbox;
    };
    const [get, attach, inputTaken] = [ends, ends, ends];
    using service = serviceOf(sandbox, { get, attach, inputTaken, [operation]: ends }, locate);
    const calls = {
      get: () => service.get(sandbox.id, made, { signal }),
      resize: () => service.resize(sandbox.id, made, { cols: 80, rows: 24 }, { signal }),
      signal: () => service.signal(sandbox.id, made, "TERM", { signal }),
      kill: () => service.kill(sandbox.id, made, { signal }),
      list: () => service.list(sandbox.id, { signal }),
      output: () => service.output(sandbox.id, made, { signal, from: 0, follow: true, lossless: false }),
      writeStdin: () => service.writeStdin(sandbox.id, made, Buffer.from("a"), { signal, close: false }),
    };
    await expect(calls[operation]()).rejects.toBe(ending);
  },
);

test.each([
  [new RuntimeGone("the connection broke"), [[made, "cancelled"]]],
  [new BadRequest("no such user"), []],
  [new Conflict("exists already"), []],
])(
  "a command whose start was not answered is ended, one that was refused is not: %s",
  async (error, kills) => {
    const starts = [
      (service: ExecService, id: string) => service.run(id, { command: "true" }, { signal }),
      (service: ExecService, id: string) =>
        service.startDetached(id, { command: "true" }, { signal, stdin: false }),
    ];
    for (const start of starts) {
      const sandbox = new FakeSandbox();
      using service = failingStarts(sandbox, error);
      sandbox.started("spawned");
      await expect(start(service, sandbox.id)).rejects.toThrow(error.message);
      await settled();
      expect(sandbox.kills).toEqual(kills);
    }
  },
);

test("a command whose start was not answered is ended once the sandbox can be reached again", async () => {
  const sandbox = new FakeSandbox();
  using service = failingStarts(sandbox, new RuntimeGone("the connection broke"));
  sandbox.started("spawned");
  const { execs } = sandbox.target.operations;
  const kill = execs.kill.bind(execs);
  const failures = [new RuntimeGone("still broken"), new NotFound("not started yet")];
  execs.kill = (...call) => {
    const failure = failures.shift();
    return failure === undefined ? kill(...call) : Promise.reject(failure);
  };
  const starting = service.startDetached(sandbox.id, { command: "true" }, { signal, stdin: false });
  await expect(starting).rejects.toThrow("the connection broke");
  await expect.poll(() => sandbox.kills, { timeout: 8_000 }).toEqual([[made, "cancelled"]]);
}, 10_000);

test("a command whose answer finds no room goes on; the answer names it and when to ask again", async () => {
  const sandbox = new FakeSandbox();
  using service = serviceOf(sandbox, {
    start: async () => ({
      execId: made,
      pid: 7,
      events: (async function* () {
        yield { type: "output" as const, stream: "stdout" as const, data: Buffer.from("a"), offset: 0 };
      })(),
      writeStdin: async () => undefined,
      closeStdin: async () => undefined,
      [Symbol.asyncDispose]: async () => undefined,
    }),
  });
  const answer = {
    grow: () => Promise.reject(new NoRoom({ why: "your share is full", advice: "try again" })),
  };
  const run = service.run(sandbox.id, { command: "true" }, { signal, answer: answer as never });
  const details = { exec_id: made, sandbox_id: sandbox.id, goes_on: "no_room" };
  await expect(run).rejects.toMatchObject({
    code: "unavailable",
    retryAfterS: 1,
    details,
    // It would be run twice.
    message: expect.not.stringContaining("try again"),
  });
  await expect(run).rejects.toThrow(/^your share is full, and this one found no room; command /);
});

test("a command that runs is counted with what is kept of its output, once, for its owner or for nobody", async () => {
  const sandbox = new FakeSandbox();
  const output = (stream: "stdout" | "stderr", bytes: number, offset: number) =>
    ({ type: "output", stream, data: Buffer.alloc(bytes), offset }) as const;
  using service = serviceOf(sandbox, {
    start: async () => ({
      execId: made,
      pid: 7,
      events: (async function* () {
        yield output("stdout", 600, 0);
        yield output("stderr", 300, 600);
        yield output("stdout", 900, 900);
        yield { type: "exit" as const, exit: exitOf({}) };
      })(),
      writeStdin: async () => undefined,
      closeStdin: async () => undefined,
      [Symbol.asyncDispose]: async () => undefined,
    }),
  });
  const asked: [string, number][] = [];
  const grow = (owner: string, bytes: number) => void asked.push([owner, bytes]);
  const answer = { grow };
  await service.run(sandbox.id, { command: "true" }, { signal, answer: answer as never });
  const { ownerId } = sandbox.target.row;
  expect(asked).toEqual([
    [ownerId, 600],
    [ownerId, 900],
    [ownerId, 1_300],
  ]);
});

test("a command whose events came with the answer of its start is not followed: it is told, counted and read as any other", async () => {
  const sandbox = new FakeSandbox();
  const data = Buffer.from("out");
  const whole = vi.fn(() => [
    { type: "output" as const, stream: "stdout" as const, data, offset: 0 },
    { type: "exit" as const, exit: exitOf({ exitCode: 3, outputBytes: 3 }) },
  ]);
  const followed: string[] = [];
  using service = serviceOf(sandbox, {
    start: async () => ({
      ...viewThat(false),
      whole,
      events: (async function* () {
        followed.push("events");
        yield { type: "exit" as const, exit: exitOf({}) };
      })(),
    }),
  });
  sandbox.started("spawned");
  const asked: number[] = [];
  const answer = { grow: (_owner: string, bytes: number) => void asked.push(bytes) };
  const outcome = await service.run(sandbox.id, { command: "true" }, { signal, answer: answer as never });
  expect([outcome.exit.exitCode, outcome.truncated, outcome.lostBytes]).toEqual([3, false, 0]);
  expect([asked, followed]).toEqual([[3], []]);
  // It has ended for the service: nobody expects its end from the feed, and it gets no grace.
  sandbox.exits.push({ execId: made, exit: exitOf({ exitCode: 4 }) });
  await settled();
  expect([sandbox.graces, sandbox.kills]).toEqual([[], []]);
  // For input there is a follower that gives it, and whoever has left meanwhile is told nothing of it.
  const stdin = new WholeInput(Buffer.alloc(0));
  await service.run(sandbox.id, { command: "true" }, { signal, stdin });
  const left = AbortSignal.abort(new CallerGone());
  await expect(service.run(sandbox.id, { command: "true" }, { signal: left })).rejects.toThrow(CallerGone);
  expect(whole).toHaveBeenCalledOnce();
});

/** A view that breaks at once, or tells an exit. */
function viewThat(ends: boolean): ExecView & { info: ExecInfo } {
  return {
    execId: made,
    pid: 7,
    info: infoOf(made),
    events: (async function* () {
      if (ends) yield { type: "exit" as const, exit: exitOf({}) };
    })(),
    writeStdin: async () => undefined,
    closeStdin: async () => undefined,
    [Symbol.asyncDispose]: async () => undefined,
  };
}

test("a start, and input, that a new connection to the sandbox cut off are done over that one", async () => {
  const sandbox = new FakeSandbox();
  const { operations } = sandbox.target;
  const cut = () => Promise.reject(new RuntimeGone("this connection is closed"));
  const before = Object.assign(operations.execs, {
    start: cut,
    startDetached: cut,
    writeStdin: cut,
    inputTaken: cut,
  } satisfies Partial<ExecOperations>);
  const calls: unknown[] = [];
  const execs: ExecOperations = {
    ...before,
    get: (execId) => Promise.reject(new NotFound(`${execId} was not started`)),
    start: async () => viewThat(true),
    startDetached: async () => ({ pid: 7 }),
    inputTaken: async () => 0,
    writeStdin: async (_id, data, { again, input }) => void calls.push([data.length, again, input]),
  };
  const looks = [before, undefined, execs];
  using service = serviceOf(sandbox, {});
  Object.defineProperty(operations, "execs", {
    get: () => {
      const found = looks.length > 1 ? looks.shift() : execs;
      if (found === undefined) throw new Unavailable("the sandbox is not connected now");
      return found;
    },
  });
  sandbox.started("spawned");
  const again = () => looks.splice(0, looks.length, before, undefined, execs);
  again();
  expect((await service.run(sandbox.id, { command: "true" }, { signal })).exit.exitCode).toBe(0);
  again();
  const detached = await service.startDetached(sandbox.id, { command: "true" }, { signal, stdin: false });
  expect(detached.pid).toBe(7);
  again();
  await service.writeStdin(sandbox.id, made, Buffer.from("abc"), { close: false, signal });
  // A sandbox that is older tells nothing of inputs: each call has one of its own.
  Object.assign(execs, { inputTaken: async () => undefined });
  await service.writeStdin(sandbox.id, made, Buffer.from("ab"), { close: false, signal });
  expect(calls).toEqual([
    [3, true, `post-${made}`],
    [2, false, made],
  ]);
  const named = service.writeStdin(sandbox.id, made, Buffer.from("a"), {
    close: false,
    signal,
    input: "in-1",
  });
  await expect(named).rejects.toMatchObject({ code: "unavailable" });
  // What was carried out is not started a second time.
  const start = () => Promise.reject(new Conflict("it runs"));
  Object.assign(execs, { get: async () => infoOf(made), start, attach: async () => viewThat(true) });
  again();
  expect((await service.run(sandbox.id, { command: "true" }, { signal })).exit.exitCode).toBe(0);
});

test("a start that was not answered names its command", async () => {
  const sandbox = new FakeSandbox();
  using service = failingStarts(sandbox, new RuntimeGone("the connection broke"));
  const start = service.run(sandbox.id, { command: "true" }, { signal });
  await expect(start).rejects.toMatchObject({ code: "unavailable", details: { exec_id: made } });
  const detached = service.startDetached(sandbox.id, { command: "true" }, { signal, stdin: false });
  await expect(detached).rejects.toMatchObject({ details: { exec_id: made } });
});

test("a start whose sandbox ended under it tells that the command is lost, detached or not", async () => {
  for (const detached of [false, true]) {
    const sandbox = new FakeSandbox();
    let asked = 0;
    const locate = () => {
      asked += 1;
      return asked === 1
        ? Promise.resolve(sandbox.target as RunningSandbox)
        : Promise.reject(new NotFound("it was destroyed"));
    };
    const fail = () => Promise.reject(new RuntimeGone("the connection broke"));
    using service = serviceOf(sandbox, { start: fail, startDetached: fail }, locate);
    const start = detached
      ? service.startDetached(sandbox.id, { command: "true" }, { signal, stdin: false })
      : service.run(sandbox.id, { command: "true" }, { signal });
    const details = { exec_id: made, reason: "lost" };
    await expect(start).rejects.toMatchObject({ code: "not_found", details });
  }
});

test("a buffered command whose sandbox is silent long past the deadline is named", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  try {
    const sandbox = new FakeSandbox();
    const closed = Promise.withResolvers<void>();
    using service = serviceOf(sandbox, {
      start: async () => ({
        ...viewThat(false),
        events: (async function* () {
          await closed.promise;
          yield* [];
        })(),
        [Symbol.asyncDispose]: async () => closed.resolve(),
      }),
    });
    const told = service.run(sandbox.id, { command: "true" }, { signal }).catch((error) => error);
    await settled();
    vi.advanceTimersByTime(120_000);
    const details = { exec_id: made, goes_on: "connection_lost" };
    expect(await told).toMatchObject({ code: "unavailable", retryAfterS: 1, details });
  } finally {
    vi.useRealTimers();
  }
});

test("a command that a stop leaves behind where none is found again is lost, and says so", async () => {
  const sandbox = new FakeSandbox();
  const stop = new AbortController();
  const start = async () => ({
    ...viewThat(false),
    events: (async function* () {
      yield { type: "output" as const, stream: "stdout" as const, data: Buffer.from("abc"), offset: 0 };
      stop.abort(new ShuttingDown());
      throw stop.signal.reason;
    })(),
  });
  const located = () => Promise.resolve(sandbox.target as RunningSandbox);
  using service = serviceOf(sandbox, { start }, located, false);
  const failure = await service
    .run(sandbox.id, { command: "true" }, { signal: stop.signal })
    .catch((error: unknown) => error);
  expect(failure).toMatchObject({ code: "unavailable", details: { exec_id: made, reason: "lost" } });
  const { details, message } = failure as Unavailable;
  expect(details).not.toHaveProperty("goes_on");
  expect(details).not.toHaveProperty("next_offset");
  expect(message).toContain('capability "adopt"');
});

test("a command that a stop leaves behind tells what it had written, and from where to read on", async () => {
  const sandbox = new FakeSandbox();
  const stop = new AbortController();
  using service = serviceOf(sandbox, {
    start: async () => ({
      ...viewThat(false),
      events: (async function* () {
        yield { type: "output" as const, stream: "stdout" as const, data: Buffer.from("abc"), offset: 0 };
        yield { type: "output" as const, stream: "stderr" as const, data: Buffer.from("de"), offset: 3 };
        stop.abort(new ShuttingDown());
        throw stop.signal.reason;
      })(),
    }),
  });
  const failure = await service
    .run(sandbox.id, { command: "true" }, { signal: stop.signal })
    .catch((error: unknown) => error);
  expect(failure).toMatchObject({
    code: "unavailable",
    retryAfterS: 1,
    details: { exec_id: made, goes_on: "shutting_down", next_offset: 5 },
  });
  const { details } = failure as Unavailable;
  expect([String(details?.stdout), String(details?.stderr)]).toEqual(["abc", "de"]);
});

test.each([
  ["destroyed", new NotFound("it was destroyed"), { code: "not_found", details: { reason: "lost" } }],
  ["expired", new Conflict("it expired"), { code: "conflict", details: { reason: "lost" } }],
  ["not to be reached", new Unavailable("no answer"), { code: "unavailable", retryAfterS: 1 }],
  ["there", undefined, { code: "unavailable", retryAfterS: 1 }],
])(
  "output that ends without an exit: the answer says whether the sandbox is gone: %s",
  async (_how, now, told) => {
    const sandbox = new FakeSandbox();
    let asked = 0;
    const locate = () => {
      asked += 1;
      return asked === 1 || now === undefined
        ? Promise.resolve(sandbox.target as RunningSandbox)
        : Promise.reject(now);
    };
    const start = async () => ({
      execId: made,
      pid: 7,
      events: (async function* () {
        yield { type: "output" as const, stream: "stdout" as const, data: Buffer.from("a"), offset: 0 };
        throw new RuntimeGone("the connection broke");
      })(),
      writeStdin: async () => undefined,
      closeStdin: async () => undefined,
      [Symbol.asyncDispose]: async () => undefined,
    });
    const attach = () => Promise.reject(new NotFound("no such command"));
    using service = serviceOf(sandbox, { start, attach }, locate);
    const failure = await service.run(sandbox.id, { command: "true" }, { signal }).catch((error) => error);
    expect(failure).toMatchObject(told);
    expect(failure.details).toMatchObject({ exec_id: made });
    expect(String(failure.details.stdout)).toBe("a");
    if (told.code === "unavailable") {
      expect(failure.message).toContain(`/sandboxes/${sandbox.id}/execs/${made}/output`);
      expect(failure.details).not.toHaveProperty("reason");
    }
    const goesOn = told.code === "unavailable" ? "connection_lost" : undefined;
    expect(failure.details.goes_on).toBe(goesOn);
    expect(failure.details.next_offset).toBe(goesOn && 1);
  },
);

test.each(["a stream", "one that is attached to"])(
  "%s has one ending, also when its sandbox ends under the command, and none when only the connection is lost",
  async (how) => {
    for (const ends of [true, false]) {
      const sandbox = new FakeSandbox();
      const view = async () => ({
        ...viewThat(false),
        events: (async function* () {
          yield { type: "output" as const, stream: "stdout" as const, data: Buffer.from("abc"), offset: 4 };
          if (ends) sandbox.stopped();
          throw new RuntimeGone("the connection broke");
        })(),
      });
      const again = () => Promise.reject(new NotFound("no such command"));
      const attaches = how === "a stream" ? [] : [view];
      const attach = () => (attaches.shift() ?? again)();
      using service = serviceOf(sandbox, { start: view, attach, get: async () => infoOf(made) });
      sandbox.started("spawned");
      await using follow =
        how === "a stream"
          ? await service.stream(sandbox.id, { command: "true" }, { signal, stdin: false })
          : await service.output(sandbox.id, made, { signal, from: 4, follow: true });
      const told: unknown[] = [];
      const reading = (async () => {
        for await (const event of follow.events) told.push(event);
      })();
      if (ends) await reading;
      else await expect(reading).rejects.toThrow("the connection broke");
      const exit = { reason: "lost", exitCode: 137, outputBytes: 7 };
      expect(told.slice(1)).toMatchObject(ends ? [{ type: "exit", exit }] : []);
    }
  },
);

test("a command that has told its end has not another one when its sandbox ends before that was read", async () => {
  const sandbox = new FakeSandbox();
  const at = new Date();
  const exit = {
    reason: "exited" as const,
    exitCode: 0,
    outputBytes: 0,
    startedAt: at,
    endedAt: at,
    durationMs: 0,
  };
  const view = async () => ({
    ...viewThat(false),
    events: (async function* () {
      yield { type: "exit" as const, exit };
    })(),
  });
  using service = serviceOf(sandbox, { start: view, get: async () => infoOf(made) });
  sandbox.started("spawned");
  await using follow = await service.stream(sandbox.id, { command: "true" }, { signal, stdin: false });
  const told: string[] = [];
  for await (const event of follow.events) {
    if (event.type === "exit") told.push(event.exit.reason);
    sandbox.stopped();
  }
  expect(told).toEqual(["exited"]);
});

test("who follows a command keeps its input until somebody else has got it: a refusal takes nothing away", async () => {
  const sandbox = new FakeSandbox();
  const view = async () => viewThat(false);
  const answers: (() => Promise<ExecView & { info: ExecInfo }>)[] = [
    () => Promise.reject(new NotFound("no such command")),
    () => Promise.reject(new Unavailable("too many follow")),
    async () => ({ ...viewThat(false), info: infoOf(made) }),
  ];
  const attach = () => (answers.shift() as () => Promise<ExecView & { info: ExecInfo }>)();
  using service = serviceOf(sandbox, {
    start: view,
    attach,
    get: async () => infoOf(made),
    inputTaken: async () => 2,
    writeStdin: async () => undefined,
  });
  sandbox.started("spawned");
  const input = "in-1";
  const options = { signal, stdin: true, input };
  await using follow = await service.stream(sandbox.id, { command: "cat" }, options);
  const take = { signal, from: 0, follow: true, input };
  await expect(service.output(sandbox.id, made, take)).rejects.toThrow("no such command");
  await expect(service.output(sandbox.id, made, take)).rejects.toThrow("too many follow");
  const gap = { signal, close: false, input, offset: 3 };
  await expect(service.writeStdin(sandbox.id, made, Buffer.from("d"), gap)).rejects.toThrow(
    "goes on at byte 2",
  );
  await follow.writeStdin(Buffer.from("ab"));
  await using second = await service.output(sandbox.id, made, take);
  await expect(follow.writeStdin(Buffer.from("c"))).rejects.toThrow("on another connection by now");
  await second.writeStdin(Buffer.from("c"));
  await service.writeStdin(sandbox.id, made, Buffer.from("c"), { ...gap, offset: 2 });
  await expect(second.writeStdin(Buffer.from("d"))).rejects.toThrow("on another connection by now");
});

test("an input that is asked for is not taken back meanwhile by who followed with it, whose connection breaks", async () => {
  const sandbox = new FakeSandbox();
  const broken = Promise.withResolvers<never>();
  const first = {
    ...viewThat(false),
    events: (async function* () {
      yield await broken.promise;
    })(),
  };
  const asked: (string | undefined)[] = [];
  const accepted = Promise.withResolvers<void>();
  const attach = async (_id: ExecId, { input, again }: { input?: string; again?: boolean }) => {
    asked.push(again === true ? `again with ${input}` : input);
    if (again !== true) await accepted.promise;
    return { ...viewThat(false), info: infoOf(made) };
  };
  using service = serviceOf(sandbox, { start: async () => first, attach, get: async () => infoOf(made) });
  sandbox.started("spawned");
  const input = "in-1";
  await using follow = await service.stream(sandbox.id, { command: "cat" }, { signal, stdin: true, input });
  const reading = (async () => {
    for await (const _event of follow.events);
  })();
  const taking = service.output(sandbox.id, made, { signal, from: 0, follow: true, input });
  await settled();
  broken.reject(new RuntimeGone("the connection broke"));
  await vi.waitFor(() => expect(asked).toEqual(["in-1"]));
  await settled();
  accepted.resolve();
  await using _second = await taking;
  await vi.waitFor(() => expect(asked).toEqual(["in-1", "again with undefined"]));
  sandbox.stopped();
  await reading.catch(() => undefined);
});
