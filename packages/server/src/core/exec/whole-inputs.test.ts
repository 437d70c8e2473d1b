import { expect, test } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import type { ExecId } from "../../ports/ids.ts";
import type { ExecView } from "../../ports/sandbox-operations.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { ExecFollower } from "./exec-follower.ts";
import { WholeInput } from "./whole-input.ts";
import { WholeInputs } from "./whole-inputs.ts";

const execId = "ex-aaaaaaaa" as ExecId;
const never = new Promise<never>(() => undefined);

/** Of a command that says nothing and takes no input. */
function quietView(): ExecView {
  const closed = Promise.withResolvers<void>();
  return {
    execId,
    pid: 7,
    // biome-ignore lint/correctness/useYield: it only ends.
    events: (async function* () {
      await closed.promise;
    })(),
    writeStdin: () => never,
    closeStdin: () => never,
    watchInput: (listener: (taken: number | undefined) => void) => listener(0),
    [Symbol.asyncDispose]: async () => closed.resolve(),
  } as ExecView;
}

test("an input that another connection goes on with is held no more, though the reader it began with stays", async () => {
  const tracker = { knows: () => true, follows: () => false, sandboxEnded: () => false };
  const perform = () => never;
  const wholeInputs = new WholeInputs({
    ...{ tracker, overBreaks: { perform } as never, logger: silentLogger },
    onLeft: () => undefined,
  });
  const follower = new ExecFollower({
    ...{ tracker: tracker as never, clock: new FakeClock(), logger: silentLogger, wholeInputs },
  });
  const follow = () =>
    follower.follow({ row: { id: "sb" }, operations: {} } as never, {
      view: quietView(),
      reader: { leave: () => undefined } as never,
      signal: new AbortController().signal,
      ...{ from: 0, lossless: false, input: execId, stdin: new WholeInput(new Uint8Array(10)) },
    });
  const first = follow();
  expect(wholeInputs.holds("sb", execId)).toBe(true);
  follower.claimInput("sb", execId, execId).refused();
  expect(wholeInputs.holds("sb", execId)).toBe(true);
  follower.claimInput("sb", execId, execId).taken();
  expect(wholeInputs.holds("sb", execId)).toBe(false);
  await first[Symbol.asyncDispose]();
  expect(wholeInputs.holds("sb", execId)).toBe(false);
  // One that leaves with it leaves the rest to the service.
  await follow()[Symbol.asyncDispose]();
  expect(wholeInputs.holds("sb", execId)).toBe(true);
  wholeInputs[Symbol.dispose]();
});
