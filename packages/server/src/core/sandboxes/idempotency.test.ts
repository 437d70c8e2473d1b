import { expect, test } from "vitest";
import type { SandboxId } from "../../ports/index.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { forever } from "../testing/harness.ts";
import { IdempotentSpawns } from "./idempotency.ts";

test("a repeat of a spawn that is being made or undone says when to come again", async () => {
  const id = "sb-1" as SandboxId;
  const spawns = new IdempotentSpawns({
    store: {
      idempotency: { find: async () => ({ bodyHash: "same", sandboxId: id }) },
      sandboxes: { get: async () => undefined },
    },
    clock: new FakeClock(),
  } as never);
  const request = { key: "k", ownerId: "ann", id, bodyHash: "same", signal: forever };
  const again = spawns.run(request, () => Promise.reject(new Error("must not be made")));
  await expect(again).rejects.toMatchObject({ code: "unavailable", retryAfterS: 1 });
});
