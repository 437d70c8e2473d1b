import { expect, it } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import { currentRequestId, withinRequest } from "../../platform/request-scope.ts";
import { ContainerEvents } from "./container-events.ts";
import type { EngineClient } from "./engine-client.ts";

it("follows the engine for nobody's request, also when one needed it first", async () => {
  const asked = Promise.withResolvers<string | undefined>();
  const stream = async () => {
    asked.resolve(currentRequestId());
    throw new Error("no engine");
  };
  using events = new ContainerEvents({
    engine: { stream } as unknown as EngineClient,
    instanceId: "instance",
    logger: silentLogger,
    onDied: asked.reject,
    onReconnected: asked.reject,
  });
  withinRequest({ id: "req-1", span: undefined }, () => events.start());
  expect(await asked.promise).toBeUndefined();
});
