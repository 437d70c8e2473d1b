import { silentLogger } from "../../platform/logger.ts";
import { systemClock } from "../../platform/system-clock.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";
import { MockProvider } from "./index.ts";

providerContract("mock", {
  create: async () => ({
    provider: new MockProvider({
      config: { defaultImage: "mock", maxWorkers: 2 },
      logger: silentLogger,
      clock: systemClock,
    }),
    image: "mock",
    close: async () => undefined,
  }),
});
