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
  const limits = new Limits(testDefaults, { quotas: { of: () => quota } });
  expect(limits.current("ada").owner.sandboxes).toBe(1);
  expect(limits.of("ada", { ...quota, maxSandboxes: 2 }).owner.sandboxes).toBe(2);
  expect(limits.of("ada", undefined).owner.sandboxes).toBe(testDefaults.maxSandboxesPerOwner);
});

test("all sandboxes may take up what the machine has, times the overcommit, unless a number is set", () => {
  const machine = { memoryMb: 1_000, vcpus: 2 };
  const shared = { ...testDefaults, memoryOvercommit: 3, vcpuOvercommit: 10 };
  expect(new Limits(shared, { machine }).current("").all).toMatchObject({ memoryMb: 3_000, vcpus: 20 });
  const set = { ...shared, maxMemoryMb: 5_000, maxVcpus: 7 };
  expect(new Limits(set, { machine }).current("").all).toMatchObject({ memoryMb: 5_000, vcpus: 7 });
  const none = { ...shared, memoryOvercommit: 0, vcpuOvercommit: 0 };
  expect(new Limits(none, { machine }).current("").all).toMatchObject({ memoryMb: 0, vcpus: 0 });
});

test("one sandbox can have what the machine has, or what was set", () => {
  const machine = { memoryMb: 1_000, vcpus: 2 };
  expect(new Limits(testDefaults, { machine }).largest).toEqual(machine);
  expect(new Limits({ ...testDefaults, maxMemoryMb: 5_000 }, { machine }).largest).toEqual({
    memoryMb: 5_000,
    vcpus: 2,
  });
});
