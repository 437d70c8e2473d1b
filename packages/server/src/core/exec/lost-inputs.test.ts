import { expect, test } from "vitest";
import { DeadlineExceeded } from "../../platform/deadline.ts";
import { silentLogger } from "../../platform/logger.ts";
import { NotFound, Unavailable } from "../../ports/errors.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecOperations } from "../../ports/sandbox-operations.ts";
import type { RunningSandbox } from "../sandboxes/live-sandboxes.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { LostInputs } from "./lost-inputs.ts";
import { exitOf, infoOf, settled } from "./testing/fake-sandbox.ts";

const execId = "ex-aaaaaaaa" as ExecId;
const graceMs = 30_000;

/** One command with 10 bytes of input promised, of which `taken` have come. */
function setUp() {
  const clock = new FakeClock();
  const state = {
    taken: 0,
    open: true,
    runs: true,
    held: false,
    failures: 0,
    failure: new Unavailable("it does not answer") as Error,
  };
  const done: string[] = [];
  const execs: Pick<ExecOperations, "get" | "inputTaken" | "writeStdin" | "kill"> = {
    get: async () => {
      if (state.failures > 0) {
        state.failures -= 1;
        throw state.failure;
      }
      return infoOf(execId, state.open ? { inputBytes: 10 } : {});
    },
    inputTaken: async () => state.taken,
    writeStdin: async (_execId, data, { close }) => {
      done.push(`wrote ${data.length}${close ? " and closed" : ""}`);
    },
    kill: async (_execId, { reason, inputLostBytes = 0 }) => {
      done.push(`killed: ${reason}, ${inputLostBytes} bytes lost`);
      return infoOf(execId, { exit: exitOf({ reason, inputLostBytes }) });
    },
  };
  const lostInputs = new LostInputs({
    sandboxes: { locate: async () => ({ operations: { execs } }) as RunningSandbox },
    tracker: { knows: () => state.runs, sawExit: () => void done.push("told") },
    holds: () => state.held,
    clock,
    logger: silentLogger,
    graceMs,
  });
  const advance = async (ms: number) => {
    await settled();
    await clock.advance(ms);
    await settled();
  };
  return { state, done, lostInputs, advance };
}

test("a command whose input nobody gives again is ended after a grace, and told to be", async () => {
  const { done, lostInputs, advance } = setUp();
  lostInputs.watch("sb", execId);
  lostInputs.watch("sb", execId);
  await advance(graceMs - 1);
  expect(done).toEqual([]);
  await advance(1);
  expect(done).toEqual(["killed: cancelled, 10 bytes lost", "told"]);
});

test("an input that comes again, in parts or from somebody here, begins the grace anew", async () => {
  const { state, done, lostInputs, advance } = setUp();
  lostInputs.watch("sb", execId);
  await advance(0);
  for (state.taken = 1; state.taken < 4; state.taken += 1) await advance(graceMs);
  state.held = true;
  await advance(graceMs);
  await advance(graceMs);
  state.held = false;
  await advance(graceMs);
  expect(done).toEqual([]);
  await advance(graceMs);
  expect(done).toEqual(["killed: cancelled, 6 bytes lost", "told"]);
});

test("an input that is there but for its end is ended at once", async () => {
  const { state, done, lostInputs, advance } = setUp();
  state.taken = 10;
  lostInputs.watch("sb", execId);
  await advance(0);
  expect(done).toEqual(["wrote 0 and closed"]);
});

test.each(["open", "runs"] as const)("a command that is not %s any more is left alone", async (field) => {
  const { state, done, lostInputs, advance } = setUp();
  lostInputs.watch("sb", execId);
  await advance(1);
  state[field] = false;
  await advance(graceMs);
  await advance(graceMs);
  expect(done).toEqual([]);
});

test.each([
  ["is refused for now", new Unavailable("it does not answer")],
  ["stands still", new DeadlineExceeded(10_000)],
  ["says what nobody understands", new TypeError("it says nothing that is known")],
])("a sandbox that %s is asked again", async (_, failure) => {
  const { state, done, lostInputs, advance } = setUp();
  Object.assign(state, { failures: 2, failure });
  lostInputs.watch("sb", execId);
  for (let turn = 0; turn < 3; turn += 1) await advance(graceMs);
  expect(done).toHaveLength(2);
});

test("a command that is not there any more is not asked for again", async () => {
  const { state, done, lostInputs, advance } = setUp();
  Object.assign(state, { failures: 1, failure: new NotFound("no such command") });
  lostInputs.watch("sb", execId);
  for (let turn = 0; turn < 3; turn += 1) await advance(graceMs);
  expect([state.failures, done]).toEqual([0, []]);
});

test("what is disposed of ends nothing", async () => {
  const { done, lostInputs, advance } = setUp();
  lostInputs.watch("sb", execId);
  await advance(1);
  lostInputs[Symbol.dispose]();
  await advance(graceMs);
  expect(done).toEqual([]);
});
