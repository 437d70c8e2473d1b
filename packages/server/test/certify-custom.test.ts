import { silentLogger } from "../src/platform/logger.ts";
import { systemClock } from "../src/platform/system-clock.ts";
import { providerContract } from "../src/ports/contract/provider-contract.ts";
import { CustomProvider } from "../src/providers/custom/index.ts";

/** A backend of somebody's own, as docs/custom-provider.md says; vitest.config.ts leaves it out where none is named. */
const {
  ALCOVE_CERTIFY_BACKEND: url = "",
  ALCOVE_CERTIFY_BACKEND_KEY: apiKey = "",
  ALCOVE_CERTIFY_BACKEND_IMAGE: image = "default",
} = process.env;

providerContract("custom, a backend of one's own", {
  create: async () => {
    const opened: CustomProvider[] = [];
    const open = async () => {
      const provider = new CustomProvider({
        config: {
          ...{ url, apiKey, defaultImage: image },
          ...{ authHeader: "bearer", networkMode: "none", timeoutMs: 30_000 },
        },
        instanceId: `certify-${process.pid}`,
        noteKey: new Uint8Array(32),
        clock: systemClock,
        logger: silentLogger,
      });
      opened.push(provider);
      const { healthy, error } = await provider.check({ signal: AbortSignal.timeout(30_000) });
      if (!healthy) throw new Error(error);
      return provider;
    };
    return {
      provider: await open(),
      image,
      restart: open,
      close: async () => {
        for (const provider of opened) await provider[Symbol.asyncDispose]();
      },
    };
  },
});
