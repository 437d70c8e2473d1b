import { afterAll, expect, vi } from "vitest";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { nativeMissing } from "../../../test/support/native-factory.ts";
import { preparedIn } from "../../../test/support/prepared.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";
import { Launcher } from "../launcher/index.ts";
import type { NativeProvider } from "./native-provider.ts";

let claims = 0;
const claim = Launcher.prototype.claim;
// Mocks are forgotten from test to test.
Launcher.prototype.claim = function (spec) {
  claims += 1;
  return claim.call(this, spec);
};
const missing = await nativeMissing();
let home: NativeHome;

/** Whose spawns find one that is prepared, where one can be. */
function patient(provider: NativeProvider): NativeProvider {
  const spawn = provider.spawn.bind(provider);
  provider.spawn = async (spec, options) => {
    const there = async () => (await preparedIn(home.dataDir)).size > 0;
    await vi.waitUntil(there, { timeout: 2_000, interval: 20 }).catch(() => undefined);
    return spawn(spec, options);
  };
  return provider;
}

providerContract("native, rooted, from prepared sandboxes", {
  ...(missing === undefined ? {} : { skip: missing }),
  create: async () => {
    home = await nativeHome();
    return {
      provider: patient(home.open({ prepared: 2 })),
      image: testImage,
      restart: async () => patient(home.open({ prepared: 2 })),
      close: () => home.remove(),
    };
  },
});

afterAll(() => {
  Launcher.prototype.claim = claim;
  if (missing === undefined) expect(claims).toBeGreaterThan(10);
});
