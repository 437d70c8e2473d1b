import { silentLogger } from "../../src/platform/logger.ts";
import { systemClock } from "../../src/platform/system-clock.ts";
import { MockProvider } from "../../src/providers/mock/index.ts";
import type { ProviderFactory } from "./test-server.ts";

export const mockProvider: ProviderFactory = async ({ config }) =>
  new MockProvider({
    config: { defaultImage: config.providers.mock.defaultImage, maxWorkers: 2 },
    logger: silentLogger,
    clock: systemClock,
  });
