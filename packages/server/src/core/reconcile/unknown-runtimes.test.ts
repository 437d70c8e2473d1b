import { expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import type { RuntimeId } from "../../ports/index.ts";
import type { SandboxLifecycle } from "../sandboxes/compose.ts";
import { forever, RecordingSink } from "../testing/harness.ts";
import { ScriptedProvider } from "../testing/scripted-provider.ts";
import { UnknownRuntimes } from "./unknown-runtimes.ts";

it("a runtime that is known by the time its turn comes is neither taken in nor ended", async () => {
  const done: string[] = [];
  const unknown = new UnknownRuntimes({
    lifecycle: {
      live: { knows: () => true },
      recover: { isLeftOver: () => false, takeIn: async () => done.push("taken in") > 0 },
      destroys: {},
    } as unknown as SandboxLifecycle,
    age: { lacks: () => true },
    events: new RecordingSink(),
    logger: silentLogger,
    end: () => void done.push("ended"),
    onFailure: (error) => void done.push(String(error)),
  });
  const runtime = { runtimeId: "rt-1" as RuntimeId, state: "running" } as const;
  expect(await unknown.settle(new ScriptedProvider(), [runtime], forever)).toBe(true);
  expect(done).toEqual([]);
});
