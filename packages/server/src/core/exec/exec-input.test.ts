import { expect, test } from "vitest";
import type { ExecId } from "../../ports/ids.ts";
import { deadlineAdvice, execSpec } from "./exec-input.ts";

const limits = { defaultTimeoutMs: 1_000, maxTimeoutMs: 60_000 };
const quota = { ...limits, quotaOf: "acme" };

test.each([
  [limits, "defaults.max_exec_timeout"],
  [quota, 'max_exec_timeout of the quota of owner "acme"'],
])("a timeout above the maximum is refused by what sets that: %o", (limits, bound) => {
  const makeId = () => "ex-aaaaaaaa" as ExecId;
  const asked = () =>
    execSpec({ command: "true", timeoutMs: 60_001 }, { limits, makeId, stdin: false, detached: false });
  expect(asked).toThrow(`may run 1m0s at most (${bound})`);
  expect(asked).toThrow(
    expect.objectContaining({ code: "resource_limit", details: { reason: "max_exec_timeout" } }),
  );
});

test("a longer timeout is only advised where one can be had", () => {
  expect(deadlineAdvice(59_000, quota)).toBe("ask for a longer timeout");
  expect(deadlineAdvice(60_000, { ...limits, maxTimeoutMs: 0 })).toBe("ask for a longer timeout");
  expect(deadlineAdvice(60_000, quota)).toBe(
    'no command may run longer (max_exec_timeout of the quota of owner "acme")',
  );
});
