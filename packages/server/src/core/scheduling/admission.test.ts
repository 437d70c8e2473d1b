import { expect, test } from "vitest";
import { Conflict } from "../../ports/index.ts";
import { decideAdmission, denied } from "./admission.ts";

test("a slot on another provider is a conflict that says where, in the preflight too", async () => {
  const elsewhere = { reason: "slot_elsewhere", provider: "native" } as const;
  const refusal = denied("ann", { admitted: false, ...elsewhere });
  expect(refusal).toBeInstanceOf(Conflict);
  expect(refusal.message).toContain('"native"');
  const none = { sandboxes: 0, memoryMb: 0, vcpus: 0 };
  const asked = decideAdmission({
    store: { sandboxes: { inUse: async () => ({ all: none, owner: none }) } } as never,
    limits: { all: none, owner: none, maxTtlMs: 0 } as never,
    draining: false,
    overflow: "queue",
    queueHasPlace: true,
    wanted: { ownerId: "ann", memoryMb: 64, vcpus: 1 },
    ttlMs: undefined,
    pool: { overflow: "queue", denial: async () => elsewhere },
  });
  await expect(asked).rejects.toEqual(refusal);
});
