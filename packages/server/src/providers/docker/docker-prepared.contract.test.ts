import { afterAll, expect, vi } from "vitest";
import { sharedEngine } from "../../../test/support/docker-engine.ts";
import { openDocker } from "../../../test/support/docker-provider.ts";
import { watchPrepared } from "../../../test/support/prepared-containers.ts";
import { firstMissing } from "../../../test/support/requirements.ts";
import { importBusybox } from "../../../test/support/tiny-images.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";
import { Launcher } from "../launcher/index.ts";
import { isPrepared } from "../prepared/index.ts";
import type { DockerProvider } from "./docker-provider.ts";

let claims = 0;
const name = Launcher.prototype.name;
// Mocks are forgotten from test to test.
Launcher.prototype.name = function (spec) {
  if (!isPrepared(spec.hostname)) claims += 1;
  return name.call(this, spec);
};
const missing = await firstMissing(["docker", "root", "agent", "launcher", "busybox"]);
let image: Promise<string> | undefined;

type Ready = () => Promise<boolean>;

/** Whose spawns find one that is prepared, from the second on, where one can be. */
function patient(provider: DockerProvider, ready: Ready): DockerProvider {
  const spawn = provider.spawn.bind(provider);
  let spawned = false;
  provider.spawn = async (spec, options) => {
    if (spawned) await vi.waitUntil(ready, { timeout: 3_000, interval: 50 }).catch(() => undefined);
    spawned = true;
    return spawn(spec, options);
  };
  return provider;
}

providerContract("docker on runc, from prepared containers", {
  ...missing,
  create: async () => {
    const engine = await sharedEngine();
    const watch = watchPrepared();
    image ??= importBusybox(engine, "alcove-test/prepared-contract:latest");
    const docker = await openDocker(engine, {
      image: await image,
      config: { prepared: 1 },
      logger: watch.logger,
    });
    const ready = async () => (await watch.waiting(engine, docker.instanceId)).length > 0;
    return {
      ...docker,
      provider: patient(docker.provider, ready),
      restart: async () => patient(await docker.restart(), ready),
    };
  },
});

afterAll(() => {
  Launcher.prototype.name = name;
  if (missing.skip === undefined) expect(claims).toBeGreaterThan(10);
});
