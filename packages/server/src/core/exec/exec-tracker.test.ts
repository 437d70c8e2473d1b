import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { BadRequest, ProviderError, RuntimeGone } from "../../ports/errors.ts";
import type { SandboxId } from "../../ports/ids.ts";
import type { NewEvent, SandboxRow } from "../../ports/store.ts";
import { OperationMetrics } from "../diagnostics/operation-metrics.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { ExecTracker } from "./exec-tracker.ts";
import type { RunningSandboxes } from "./running-sandboxes.ts";
import { attachedTo, exitOf, FakeSandbox, infoOf, settled } from "./testing/fake-sandbox.ts";

const started = (id: string) => ({ execId: id as never, operation: "exec" as const, detached: false });

describe("ExecTracker", () => {
  let told: Omit<NewEvent, "timestamp">[];
  let sandbox: FakeSandbox;
  let tracker: ExecTracker;
  let clock: FakeClock;
  let operations: OperationMetrics;
  const open = (disconnectGraceMs = 1_000) => openWith(sandbox, disconnectGraceMs);
  const openWith = (sandboxes: Pick<RunningSandboxes, "subscribe">, disconnectGraceMs = 1_000) =>
    new ExecTracker({
      sandboxes,
      events: { emit: (event) => told.push(event) },
      clock,
      logger: silentLogger,
      operations,
      disconnectGraceMs,
    });
  const types = () => told.map((event) => event.type);

  beforeEach(() => {
    told = [];
    sandbox = new FakeSandbox();
    clock = new FakeClock();
    operations = new OperationMetrics({ clock, providers: [] });
    tracker = open();
  });
  afterEach(() => tracker[Symbol.dispose]());

  test("tells a start and an end once, whoever sees the end first and however often", async () => {
    sandbox.started("spawned");
    await tracker.start(sandbox.target, started("ex-1"), async () => ({}));
    sandbox.exits.push({ execId: "ex-1" as never, exit: exitOf({ exitCode: 3 }) });
    await settled();
    tracker.sawExit(sandbox.id, "ex-1" as never, exitOf({ exitCode: 3 }));
    expect(types()).toEqual(["exec.started", "exec.completed"]);
    expect(told[1]?.data).toMatchObject({
      exec_id: "ex-1",
      exit_code: 3,
      provider: "fake",
      operation: "exec",
    });
    expect(tracker.size).toBe(0);
  });

  test("what a provider ran is counted, whatever came of the command; what went with its sandbox is a failure, unless somebody destroyed that", async () => {
    const counted = () =>
      operations.all.flatMap(({ operation, succeeded, failed, longestMs }) =>
        operation === "exec" ? [succeeded, failed, longestMs] : [],
      );
    sandbox.started("spawned");
    for (const [id, exit] of [
      ["ex-1", exitOf({ exitCode: 3, durationMs: 20 })],
      ["ex-2", exitOf({ reason: "timeout", durationMs: 70 })],
    ] as const) {
      await tracker.start(sandbox.target, started(id), async () => ({}));
      tracker.sawExit(sandbox.id, id as never, exit);
    }
    expect(counted()).toEqual([2, 0, 70]);
    const refused = () => Promise.reject(new BadRequest("no such user"));
    await expect(tracker.start(sandbox.target, started("ex-3"), refused)).rejects.toThrow();
    expect(counted()).toEqual([2, 0, 70]);
    const broken = () => Promise.reject(new ProviderError("no engine"));
    await expect(tracker.start(sandbox.target, started("ex-4"), broken)).rejects.toThrow();
    expect(counted()).toEqual([2, 1, 70]);
    await tracker.start(sandbox.target, started("ex-5"), async () => ({}));
    await clock.advance(100);
    sandbox.stopped("ended");
    expect(counted()).toEqual([2, 2, 100]);
    sandbox.started("spawned");
    await tracker.start(sandbox.target, started("ex-6"), async () => ({}));
    sandbox.stopped("destroyed");
    expect(counted()).toEqual([2, 2, 100]);
  });

  test("no more commands are learned from a sandbox than run in one", async () => {
    for (let round = 0; round < 3; round += 1) {
      sandbox.infos = Array.from({ length: 4_000 }, (_, index) =>
        infoOf(`ex-${round}-${index}`, { detached: true }),
      );
      if (round === 0) sandbox.started("adopted");
      else sandbox.replaced();
      await settled();
    }
    expect(tracker.size).toBe(8_192);
  });

  test("an end that overtakes the answer to the start is told after it", async () => {
    sandbox.started("spawned");
    await tracker.start(sandbox.target, started("ex-1"), async () => {
      tracker.sawExit(sandbox.id, "ex-1" as never, exitOf({}));
      return {};
    });
    expect(types()).toEqual(["exec.started", "exec.completed"]);
  });

  test.each([
    [exitOf({ reason: "timeout", exitCode: 137 }), "exec.timeout"],
    [exitOf({ reason: "signaled", exitCode: 143, signal: "SIGTERM" }), "exec.completed"],
    [exitOf({ reason: "cancelled", exitCode: 137 }), "exec.failed"],
    [exitOf({ reason: "oom", exitCode: 137 }), "exec.failed"],
    [exitOf({ reason: "lost", exitCode: 137 }), "exec.failed"],
    [exitOf({ exitCode: 127, startError: "not found" }), "exec.failed"],
  ])("%j is told as %s", async (exit, type) => {
    sandbox.started("spawned");
    await tracker.start(sandbox.target, started("ex-1"), async () => ({}));
    tracker.sawExit(sandbox.id, "ex-1" as never, exit);
    expect(types()).toEqual(["exec.started", type]);
  });

  test("a start that fails is exec.failed; one the caller got wrong is told to the caller alone", async () => {
    sandbox.started("spawned");
    const fail = (error: Error) =>
      tracker.start(sandbox.target, started("ex-1"), () => Promise.reject(error));
    await expect(fail(new BadRequest("no such workdir"))).rejects.toThrow("workdir");
    expect(types()).toEqual([]);
    await expect(fail(new ProviderError("broken"))).rejects.toThrow("broken");
    expect(types()).toEqual(["exec.failed"]);
    expect(tracker.size).toBe(0);
  });

  test("a start that may have been carried out is told as failed, and its end is not told again", async () => {
    const give = () =>
      tracker.start(sandbox.target, { ...started("ex-1"), maybeStarted: () => true }, () =>
        Promise.reject(new RuntimeGone("the connection broke")),
      );
    const ends = [
      // Told as it happens, or found in the list after the next connection.
      async () => sandbox.exits.push({ execId: "ex-1" as never, exit: exitOf({}) }),
      async () => {
        sandbox.infos = [infoOf("ex-1", { exit: exitOf({}) })];
        sandbox.replaced();
      },
      async () => {
        sandbox.infos = [infoOf("ex-1")];
        sandbox.replaced();
        await settled();
        sandbox.exits.push({ execId: "ex-1" as never, exit: exitOf({ reason: "cancelled" }) });
      },
      async () => {
        sandbox.infos = [];
        sandbox.replaced();
      },
      async () => sandbox.stopped(),
    ];
    for (const end of ends) {
      told = [];
      sandbox.started("spawned");
      await settled();
      await expect(give()).rejects.toThrow("the connection broke");
      expect(tracker.isUnanswered(sandbox.id, "ex-1" as never)).toBe(true);
      await end();
      await settled();
      expect(types()).toEqual(["exec.failed"]);
      expect(tracker.size).toBe(0);
    }
  });

  test("a start under the id of a command that runs, or was given up, tells no end of its own", async () => {
    const again = () =>
      tracker.start(sandbox.target, { ...started("ex-1"), maybeStarted: () => true }, () =>
        Promise.reject(new RuntimeGone("the connection broke")),
      );
    sandbox.started("spawned");
    await tracker.start(sandbox.target, started("ex-1"), async () => ({}));
    await expect(again()).rejects.toThrow("the connection broke");
    tracker.sawExit(sandbox.id, "ex-1" as never, exitOf({}));
    expect(types()).toEqual(["exec.started", "exec.completed"]);
    told = [];
    await expect(again()).rejects.toThrow("the connection broke");
    await expect(again()).rejects.toThrow("the connection broke");
    expect(types()).toEqual(["exec.failed"]);
    // The one before was never carried out.
    await tracker.start(sandbox.target, started("ex-1"), async () => {
      tracker.sawExit(sandbox.id, "ex-1" as never, exitOf({}));
      return {};
    });
    expect(types()).toEqual(["exec.failed", "exec.started", "exec.completed"]);
    expect(tracker.size).toBe(0);
  });

  describe("where somebody destroys a sandbox", () => {
    const detached = { ...started("ex-1"), detached: true };
    const ends = () => told.slice(1).map(({ type, data }) => [type, data?.reason]);

    test("commands that nobody reads are looked at once more, so that those that have ended are not lost", async () => {
      sandbox.started("spawned");
      await tracker.start(sandbox.target, detached, async () => ({}));
      sandbox.infos = [infoOf("ex-1", { detached: true, exit: exitOf({}) })];
      await sandbox.ending();
      sandbox.stopped("destroyed");
      expect(ends()).toEqual([["exec.completed", "exited"]]);
    });

    test("nothing is looked at where every command is read, or none runs yet", async () => {
      sandbox.started("spawned");
      await sandbox.ending();
      await tracker.start(sandbox.target, started("ex-1"), async () => ({}));
      await sandbox.ending();
      // One that is being started has a caller who hears of it.
      await tracker.start(sandbox.target, { ...detached, execId: "ex-2" as never }, () => sandbox.ending());
      expect(sandbox.lists).toBe(0);
    });

    test.each([
      ["does not answer", () => new Promise<never>(() => undefined)],
      ["refuses", () => Promise.reject(new RuntimeGone("it is gone"))],
    ])("one that %s keeps nobody waiting for long, and its commands are lost", async (_how, list) => {
      sandbox.started("spawned");
      await tracker.start(sandbox.target, detached, async () => ({}));
      Object.assign(sandbox.target.operations.execs, { list });
      const began = performance.now();
      await sandbox.ending().catch(() => undefined);
      expect(performance.now() - began).toBeLessThan(2_000);
      sandbox.stopped("destroyed");
      expect(ends()).toEqual([["exec.failed", "lost"]]);
    });
  });

  test("commands of a sandbox that ends are lost", async () => {
    sandbox.started("spawned");
    await tracker.start(sandbox.target, started("ex-1"), async () => ({}));
    sandbox.stopped();
    expect(types()).toEqual(["exec.started", "exec.failed"]);
    expect(told[1]?.data).toMatchObject({ reason: "lost" });
  });

  test("the last reader that leaves starts the grace, not the first, and none after the end", async () => {
    sandbox.started("spawned");
    const { reader } = await tracker.start(sandbox.target, started("ex-1"), async () => ({}));
    const { reader: second } = await tracker.attach(sandbox.target, "ex-1" as never, async () =>
      attachedTo("ex-1"),
    );
    reader.leave();
    reader.leave();
    await settled();
    expect(sandbox.graces).toEqual([]);
    second.leave();
    await settled();
    expect(sandbox.graces).toEqual([["ex-1", 1_000]]);
    const { reader: third } = await tracker.attach(sandbox.target, "ex-1" as never, async () =>
      attachedTo("ex-1"),
    );
    tracker.sawExit(sandbox.id, "ex-1" as never, exitOf({}));
    third.leave();
    await settled();
    expect(sandbox.graces).toEqual([["ex-1", 1_000]]);
  });

  test("detached commands, and readers that leave with the service, start no grace", async () => {
    sandbox.started("spawned");
    const detached = await tracker.start(
      sandbox.target,
      { ...started("ex-1"), detached: true },
      async () => ({}),
    );
    detached.reader.leave();
    const attached = await tracker.start(sandbox.target, started("ex-2"), async () => ({}));
    attached.reader.leave({ grace: false });
    await settled();
    expect(sandbox.graces).toEqual([]);
  });

  test("a grace of 0 kills at once with reason cancelled", async () => {
    tracker[Symbol.dispose]();
    tracker = open(0);
    sandbox.started("spawned");
    const { reader } = await tracker.start(sandbox.target, started("ex-1"), async () => ({}));
    reader.leave();
    await settled();
    expect(sandbox.kills).toEqual([["ex-1", "cancelled"]]);
    expect(types()).toEqual(["exec.started", "exec.failed"]);
  });

  test("at adoption commands that run get a fresh grace, detached and ended ones none", async () => {
    sandbox.infos = [
      infoOf("ex-1"),
      infoOf("ex-2", { detached: true }),
      infoOf("ex-3", { exit: exitOf({}) }),
    ];
    sandbox.started("adopted");
    await settled();
    expect(sandbox.graces).toEqual([["ex-1", 1_000]]);
    sandbox.exits.push({ execId: "ex-2" as never, exit: exitOf({}) });
    await settled();
    expect(types()).toEqual(["exec.completed"]);
  });

  test("a command whose input may be missing is left longer to who looks after that, and says why it ends", async () => {
    sandbox.infos = [infoOf("ex-1", { inputBytes: 10 }), infoOf("ex-2")];
    sandbox.started("adopted");
    await settled();
    expect(sandbox.graces).toEqual([
      ["ex-1", 12_000],
      ["ex-2", 1_000],
    ]);
  });

  test("who attaches while a grace is announced keeps the command", async () => {
    sandbox.infos = [infoOf("ex-1")];
    sandbox.started("adopted");
    const { reader } = await tracker.attach(sandbox.target, "ex-1" as never, async () => {
      await settled();
      return attachedTo("ex-1");
    });
    expect(sandbox.graces.at(-1)).toEqual(["ex-1", null]);
    reader.leave();
    await settled();
    expect(sandbox.graces.at(-1)).toEqual(["ex-1", 1_000]);
  });

  test("who attaches to a command whose grace cannot be called off is not counted, and its view is closed", async () => {
    sandbox.infos = [infoOf("ex-1")];
    sandbox.started("adopted");
    const view = attachedTo("ex-1");
    const attaching = tracker.attach(sandbox.target, "ex-1" as never, async () => {
      await settled();
      sandbox.failures = 1;
      return view;
    });
    await expect(attaching).rejects.toThrow("does not answer");
    expect(view.closed).toBe(true);
    await settled();
    // The one of the catch-up, and the one for the reader that failed.
    expect(sandbox.graces).toEqual([
      ["ex-1", 1_000],
      ["ex-1", 1_000],
    ]);
  });

  test("a sandbox that does not answer at first is caught up with later, over one feed", async () => {
    sandbox.infos = [infoOf("ex-1")];
    sandbox.failures = 5;
    sandbox.started("adopted");
    await clock.advance(60_000);
    expect(sandbox.openFeeds).toBe(1);
    expect(sandbox.graces).toEqual([["ex-1", 1_000]]);
    tracker[Symbol.dispose]();
    await settled();
    expect(sandbox.openFeeds).toBe(0);
  });

  test("a grace is announced however long its sandbox does not answer", async () => {
    sandbox.started("spawned");
    const { reader } = await tracker.start(sandbox.target, started("ex-1"), async () => ({}));
    sandbox.failures = 20;
    const warn = vi.spyOn(silentLogger, "warn");
    reader.leave();
    await clock.advance(1_000);
    // A sandbox that ends soon is told by its own line.
    expect(warn).not.toHaveBeenCalled();
    await clock.advance(60_000);
    expect(sandbox.graces).toEqual([["ex-1", 1_000]]);
    expect(warn.mock.calls.map(([fields]) => fields)).toEqual([
      expect.objectContaining({ exec_id: "ex-1", error: expect.any(String), attempt: 10 }),
    ]);
    warn.mockRestore();
  });

  test("one broken connection, which looks like the end of the sandbox, does not end the announcing of a grace", async () => {
    sandbox.started("spawned");
    const { reader } = await tracker.start(sandbox.target, started("ex-1"), async () => ({}));
    sandbox.failure = () => new RuntimeGone("sandbox has ended");
    sandbox.failures = 1;
    reader.leave();
    await settled();
    expect(sandbox.graces).toEqual([]);
    clock.advance(300);
    await settled();
    expect(sandbox.graces).toEqual([["ex-1", 1_000]]);
  });

  test("a sandbox that is followed anew gives commands it knows and that nobody reads their grace, once", async () => {
    sandbox.started("spawned");
    const read = await tracker.start(sandbox.target, started("ex-1"), async () => ({}));
    const left = await tracker.start(sandbox.target, started("ex-2"), async () => ({}));
    await tracker.start(sandbox.target, { ...started("ex-3"), detached: true }, async () => ({}));
    sandbox.failures = 1;
    left.reader.leave();
    await settled();
    sandbox.infos = [infoOf("ex-1"), infoOf("ex-2"), infoOf("ex-3", { detached: true })];
    sandbox.replaced();
    await settled();
    expect(sandbox.graces).toEqual([["ex-2", 1_000]]);
    clock.advance(60_000);
    await settled();
    expect(sandbox.graces).toEqual([["ex-2", 1_000]]);
    read.reader.leave();
    await settled();
    expect(sandbox.graces).toEqual([
      ["ex-2", 1_000],
      ["ex-1", 1_000],
    ]);
  });

  test("at adoption the list is read once ends are told, so that none falls between", async () => {
    const connected = Promise.withResolvers<void>();
    sandbox.listening = connected.promise;
    sandbox.infos = [infoOf("ex-1")];
    sandbox.started("adopted");
    await settled();
    expect(sandbox.lists).toBe(0);
    connected.resolve();
    await settled();
    expect(sandbox.lists).toBe(1);
  });

  test("a sandbox that stopped after it was found is not followed anew, and nothing is kept of it", async () => {
    sandbox.started("spawned");
    sandbox.stopped();
    sandbox.infos = [infoOf("ex-2")];
    await tracker.start(sandbox.target, started("ex-1"), async () => ({}));
    const attached = await tracker.attach(sandbox.target, "ex-2" as never, async () => attachedTo("ex-2"));
    attached.reader.leave();
    await clock.advance(60_000);
    expect(types()).toEqual(["exec.started", "exec.failed"]);
    expect([tracker.follows(sandbox.id), tracker.size]).toEqual([false, 0]);
    expect([sandbox.openFeeds, sandbox.lists, sandbox.graces, clock.armed]).toEqual([0, 0, [], 0]);
  });

  test("how many commands are followed is known without looking through the sandboxes", async () => {
    const rows = Array.from({ length: 300 }, (_, index) => ({
      ...sandbox.target.row,
      id: `sb-${index}` as SandboxId,
    }));
    const listeners: Parameters<RunningSandboxes["subscribe"]>[0][] = [];
    const subscribe: RunningSandboxes["subscribe"] = (listener) => {
      listeners.push(listener);
      return () => undefined;
    };
    using many = openWith({ subscribe });
    const [listener] = listeners;
    const inAll = () => rows.reduce((sum, { id }) => sum + many.countOf(id), 0);
    const target = (row: SandboxRow) => ({ row, operations: sandbox.target.operations });
    for (const row of rows) listener?.started(row, sandbox.target.operations, "spawned");
    for (const row of rows.slice(0, 100))
      for (const id of ["ex-1", "ex-2"]) await many.start(target(row), started(id), async () => ({}));
    expect([many.size, inAll()]).toEqual([200, 200]);
    for (const { id } of rows.slice(0, 30)) many.sawExit(id, "ex-1" as never, exitOf({}));
    for (const { id } of rows.slice(20, 40)) listener?.stopped(id, "ended");
    // Connected anew, they keep their commands; what is learned of one that has stopped meanwhile counts no more.
    for (const row of rows.slice(0, 10)) listener?.started(row, { ...sandbox.target.operations }, "adopted");
    const stoppedMeanwhile = async () => {
      listener?.stopped("sb-19" as SandboxId, "ended");
      return attachedTo("ex-9");
    };
    await many.attach(target(rows[19] as SandboxRow), "ex-9" as never, stoppedMeanwhile);
    expect([many.size, inAll()]).toEqual([139, 139]);
    const looks = vi.spyOn(Map.prototype, "values");
    const size = many.size;
    const looked = looks.mock.calls.length;
    looks.mockRestore();
    expect([size, looked]).toEqual([139, 0]);
    many[Symbol.dispose]();
    expect(many.size).toBe(0);
  });

  test("a command whose sandbox ended while it was started is lost, once", async () => {
    sandbox.started("spawned");
    await tracker.start(sandbox.target, started("ex-1"), async () => {
      sandbox.stopped();
      return {};
    });
    expect(types()).toEqual(["exec.started", "exec.failed"]);
    expect(tracker.size).toBe(0);
  });

  test("a start that its sandbox's end overtakes is told as lost, and another that fails is not", async () => {
    const failing = () =>
      tracker.start(sandbox.target, started("ex-1"), () => Promise.reject(new ProviderError("no")));
    sandbox.started("spawned");
    await expect(failing()).rejects.toThrow();
    const overtaken = tracker.start(sandbox.target, started("ex-2"), async () => {
      sandbox.stopped("destroyed");
      throw new RuntimeGone("it has ended");
    });
    await expect(overtaken).rejects.toThrow();
    expect(told.map(({ type, data }) => [type, data?.reason])).toEqual([
      ["exec.failed", undefined],
      ["exec.failed", "lost"],
    ]);
  });
});
