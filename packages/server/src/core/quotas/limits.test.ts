import { expect, test } from "vitest";
import type { QuotaRow } from "../../ports/index.ts";
import { testDefaults } from "../testing/harness.ts";
import { Limits } from "./limits.ts";

const quota: QuotaRow = {
  ownerId: "ada",
  maxSandboxes: 1,
  maxTtlMs: 0,
  maxExecTimeoutMs: 0,
  maxMemoryMb: 0,
  maxVcpus: 0,
  createdAt: new Date(0),
  updatedAt: new Date(0),
};

test("a quota that was read just now counts, also when there is none any more", () => {
  const limits = new Limits(testDefaults, { of: () => quota });
  expect(limits.of("ada").owner.sandboxes).toBe(1);
  expect(limits.of("ada", { ...quota, maxSandboxes: 2 }).owner.sandboxes).toBe(2);
  expect(limits.of("ada", undefined).owner.sandboxes).toBe(testDefaults.maxSandboxesPerOwner);
});
