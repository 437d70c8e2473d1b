import { expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import type { RuntimeId } from "../../ports/index.ts";
import type { ConnectedRuntime } from "./connected-runtime.ts";
import { ConnectedRuntimes } from "./connected-runtimes.ts";
import type { Containers } from "./containers.ts";
import { EngineClient } from "./engine-client.ts";

it("one that is being destroyed is none of those that run, until that failed", async () => {
  using engine = new EngineClient({ socket: "unix:///nowhere/docker.sock" });
  await using connected = new ConnectedRuntimes({
    engine,
    containers: {} as Containers,
    instanceId: "i",
    logger: silentLogger,
    reconnect: async () => undefined,
  });
  const [one, two] = ["rt-1", "rt-2"] as [RuntimeId, RuntimeId];
  for (const runtimeId of [one, two])
    connected.add({
      runtimeId,
      client: { onGone: () => undefined },
      [Symbol.asyncDispose]: async () => undefined,
    } as unknown as ConnectedRuntime);
  const destroy = Promise.withResolvers<void>();
  const destroying = connected.during(one, () => destroy.promise);
  expect([...connected.keys()]).toEqual([two]);
  expect([...connected.leaving()]).toEqual([one]);
  destroy.reject(new Error("the engine is busy"));
  await expect(destroying).rejects.toThrow("busy");
  expect([...connected.keys()]).toEqual([one, two]);
  await connected.during(one, async () => undefined);
  expect([...connected.keys()]).toEqual([two]);
  expect([...connected.leaving()]).toEqual([]);
});
