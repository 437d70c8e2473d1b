import { expect, it } from "vitest";
import { loadConfig } from "./config/load.ts";
import { type Logger, silentLogger } from "./platform/logger.ts";
import { systemClock } from "./platform/system-clock.ts";
import type { ImageStore } from "./ports/index.ts";
import { providerCandidates } from "./provider-candidates.ts";

it("no provider's lines have a field twice", async () => {
  const twice: string[] = [];
  // pino writes each binding, also one that was given before.
  const loggerWith = (bound: readonly string[]) =>
    ({
      ...silentLogger,
      child: (bindings: object) => {
        const names = Object.keys(bindings);
        twice.push(...names.filter((name) => bound.includes(name)));
        return loggerWith([...bound, ...names]);
      },
    }) as unknown as Logger;
  const candidates = await providerCandidates({
    config: loadConfig({ env: {}, cwd: "/nonexistent" }),
    instanceId: "test",
    noteKey: new Uint8Array(32),
    images: {} as ImageStore,
    logger: loggerWith([]),
    clock: systemClock,
  });
  expect(candidates).toHaveLength(7);
  expect(twice).toEqual([]);
});
