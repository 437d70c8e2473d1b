import { silentLogger } from "../../../src/platform/logger.ts";
import { systemClock } from "../../../src/platform/system-clock.ts";
import { type E2bConfig, E2bProvider } from "../../../src/providers/e2b/index.ts";
import { nativeHome, testImage } from "../native.ts";
import { E2bServer } from "./e2b-server.ts";

export const testTemplate = "busybox-test";

/** A service like e2b on loopback, with sandboxes that are native ones of this machine, and providers of it. */
export interface Hosted {
  server: E2bServer;
  close(): Promise<void>;
  open(change?: Partial<E2bConfig> & { instanceId?: string }): E2bProvider;
}

export async function hosted(): Promise<Hosted> {
  const home = await nativeHome();
  // Root of a hosted sandbox may do what root may.
  const provider = home.open({ addedCaps: ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL"] });
  const server = await E2bServer.open({
    provider,
    image: testImage,
    template: testTemplate,
    // envd's default is a user of the template, `user` in the service's own ones.
    defaultUser: "root",
  });
  return {
    server,
    open: ({ instanceId = "installation-1", ...change } = {}) =>
      new E2bProvider({
        config: {
          defaultImage: testTemplate,
          apiKey: server.apiKey,
          apiUrl: server.url,
          domain: "sandboxes.test",
          sandboxUrl: server.url,
          networkMode: "none",
          timeoutMs: 15_000,
          maxLifetimeMs: 86_400_000,
          ...change,
        },
        instanceId,
        noteKey: new Uint8Array(32),
        clock: systemClock,
        logger: silentLogger,
      }),
    close: async () => {
      await server[Symbol.asyncDispose]();
      await provider[Symbol.asyncDispose]();
      await home.remove();
    },
  };
}
