import { leastMemoryMb } from "@alcove/wire";
import { expect, test } from "vitest";
import { Conflict } from "../../ports/index.ts";
import { decideAdmission, denied } from "./admission.ts";

test("a slot on another provider is a conflict that says where, in the preflight too", async () => {
  const elsewhere = { reason: "slot_elsewhere", provider: "native" } as const;
  const refusal = denied("ann", { admitted: false, ...elsewhere }, { memoryMb: 512, vcpus: 1 });
  expect(refusal).toBeInstanceOf(Conflict);
  expect(refusal.message).toContain('"native"');
  const none = { sandboxes: 0, memoryMb: 0, vcpus: 0 };
  const asked = decideAdmission({
    store: { sandboxes: { inUse: async () => ({ all: none, owner: none }) } } as never,
    limits: { all: none, owner: none, maxTtlMs: 0 } as never,
    refused: false,
    overflow: "queue",
    queueHasPlace: true,
    wanted: { ownerId: "ann", memoryMb: 64, vcpus: 1 },
    ttlMs: undefined,
    pool: { overflow: "queue", denial: async () => elsewhere },
  });
  await expect(asked).rejects.toEqual(refusal);
});

test.each([
  [
    "max_memory_mb_per_owner",
    'owner "ann" may hold 1024 MB of memory and has 1000; a sandbox has 512 unless its memory_mb asks for less; destroy a sandbox or try again later',
  ],
  [
    "max_vcpus",
    "this service may hold 4 virtual processors and has 4; its bound is defaults.max_vcpus, else the machine's processors times defaults.vcpu_overcommit; a sandbox has 2 unless its vcpus asks for less; destroy a sandbox or try again later",
  ],
  [
    "max_sandboxes",
    "this service may hold 9 sandboxes and has 9; its bound is defaults.max_sandboxes; destroy a sandbox or try again later",
  ],
] as const)("a refusal by %s says what a sandbox takes that did not say", (reason, message) => {
  const limits = {
    all: { sandboxes: 9, memoryMb: 4096, vcpus: 4 },
    owner: { sandboxes: 9, memoryMb: 1024, vcpus: 4 },
  };
  const inUse = {
    all: { sandboxes: 9, memoryMb: 2000, vcpus: 4 },
    owner: { sandboxes: 2, memoryMb: 1000, vcpus: 2 },
  };
  const result = { admitted: false, reason, hopeless: false, inUse, limits } as const;
  expect(denied("ann", result, { memoryMb: 512, vcpus: 2 }).message).toBe(message);
  // Of the least there is nothing less to ask for.
  const least = denied("ann", result, { memoryMb: leastMemoryMb, vcpus: 1 }).message;
  expect(least).toBe(message.replace(/ a sandbox has .*? asks for less;/, ""));
});
