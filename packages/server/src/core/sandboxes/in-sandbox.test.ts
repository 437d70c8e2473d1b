import { expect, test } from "vitest";
import { Conflict, NotFound, ProviderError, RuntimeGone, Unavailable } from "../../ports/index.ts";
import { FakeSandbox } from "../exec/testing/fake-sandbox.ts";
import { inSandbox } from "./in-sandbox.ts";
import type { RunningSandbox } from "./live-sandboxes.ts";

const { signal } = new AbortController();

/** Is there at the first question; then as `then` says. */
function sandboxes(then: Error | undefined) {
  const { target } = new FakeSandbox();
  let asked = 0;
  const locate = async () => {
    asked += 1;
    if (asked > 1 && then !== undefined) throw then;
    return target as RunningSandbox;
  };
  return { locate };
}

const failing = (then: Error | undefined, error: Error, options = { signal }) =>
  inSandbox(sandboxes(then), "sb-1", options, () => Promise.reject(error));

test.each([
  new RuntimeGone("sandbox sb-1 has ended"),
  new Unavailable("the sandbox is not connected now"),
  new ProviderError("the console cannot be read"),
])("what fails in a sandbox that was destroyed meanwhile, or is being, says so: %s", async (error) => {
  for (const end of [new NotFound("it was destroyed"), new Conflict("it is being destroyed")])
    await expect(failing(end, error)).rejects.toBe(end);
});

test("what fails in a sandbox that is there, or whose end is not known, is told as it is", async () => {
  const error = new RuntimeGone("the connection broke");
  await expect(failing(undefined, error)).rejects.toBe(error);
  await expect(failing(new Unavailable("it cannot be reached"), error)).rejects.toBe(error);
});

test("what the caller got wrong, and what a caller who left broke off, is told as it is", async () => {
  const gone = new NotFound("the sandbox was destroyed");
  const missing = new NotFound("there is no such file");
  await expect(failing(gone, missing)).rejects.toBe(missing);
  const left = new Unavailable("broken off");
  await expect(failing(gone, left, { signal: AbortSignal.abort() })).rejects.toBe(left);
});
