import { expect, test } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { BadRequest, Conflict, NotFound, RuntimeGone, Unavailable } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecOperations } from "../../ports/sandbox-operations.ts";
import type { RunningSandbox } from "../sandboxes/live-sandboxes.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { ExecService } from "./exec-service.ts";
import { FakeSandbox, settled } from "./testing/fake-sandbox.ts";

const made = "ex-aaaaaaaa" as ExecId;
const { signal } = new AbortController();

/** A service whose every start ends with `error`. */
function failingStarts(sandbox: FakeSandbox, error: Error): ExecService {
  const fail = () => Promise.reject(error);
  return serviceOf(sandbox, { start: fail, startDetached: fail });
}

function serviceOf(sandbox: FakeSandbox, operations: Partial<ExecOperations>): ExecService {
  Object.assign(sandbox.target.operations.execs, operations);
  return new ExecService({
    sandboxes: {
      subscribe: (listener) => sandbox.subscribe(listener),
      locate: () => Promise.resolve(sandbox.target as RunningSandbox),
    },
    events: { emit: () => undefined },
    ids: { execId: () => made },
    clock: new FakeClock(),
    logger: silentLogger,
    limits: {
      deadlinesOf: () => ({ defaultTimeoutMs: 1_000, maxTimeoutMs: 1_000 }),
      maxOutputBytes: 1_000,
      disconnectGraceMs: 1_000,
    },
  });
}

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
      await expect(start(service, sandbox.id)).rejects.toThrow(error);
      await settled();
      expect(sandbox.kills).toEqual(kills);
    }
  },
);

test("a command whose start was not answered is ended once the sandbox can be reached again", async () => {
  const sandbox = new FakeSandbox();
  using service = failingStarts(sandbox, new RuntimeGone("the connection broke"));
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
  const answer = { grow: () => Promise.reject(new Unavailable("no room", { retryAfterS: 3 })) };
  const run = service.run(sandbox.id, { command: "true" }, { signal, answer: answer as never });
  const details = { exec_id: made, sandbox_id: sandbox.id, goes_on: "no_room" };
  await expect(run).rejects.toMatchObject({ code: "unavailable", retryAfterS: 3, details });
});
