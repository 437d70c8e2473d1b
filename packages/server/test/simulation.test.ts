import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, test } from "vitest";
import { loadConfig } from "../src/config/load.ts";
import { FakeClock } from "../src/core/testing/fake-clock.ts";
import { Harness } from "../src/core/testing/harness.ts";
import { ScriptedProvider } from "../src/core/testing/scripted-provider.ts";
import { serve } from "../src/main.ts";
import { silentLogger } from "../src/platform/logger.ts";
import { SqliteStore } from "../src/stores/sqlite/index.ts";

test("auto does not put a simulation in the place of the provider whose sandboxes are there", async () => {
  const dataDir = await mkdtemp(path.join(tmpdir(), "alcove-simulation-"));
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => rm(dataDir, { recursive: true, force: true }));
  const configOf = (name: string) =>
    loadConfig({
      env: {
        ALCOVE_DATA_DIR: dataDir,
        ALCOVE_SERVER_PORT: "0",
        ALCOVE_PROVIDERS_DEFAULT: name,
        ALCOVE_PROVIDERS_NATIVE_ENABLED: "false",
        ALCOVE_PROVIDERS_DOCKER_ENABLED: "false",
      },
      cwd: dataDir,
    });
  {
    const service = await serve({ config: configOf("auto"), logger: silentLogger });
    cleanup.defer(() => service.close());
    const told = async (route: string): Promise<unknown> =>
      (await fetch(`${service.url}/api/v1${route}`)).json();
    const standIn = expect.stringContaining("the default because nothing that runs programs worked");
    const simulated = expect.stringContaining("commands are simulated");
    expect(await told("/providers")).toMatchObject([{ name: "mock", notes: [standIn, simulated] }]);
    // Without a key too, and to hand on.
    for (const route of ["/ready", "/diagnostics"])
      expect(await told(route)).not.toHaveProperty("providers.0.notes");
    await service.close();
  }
  {
    await using store = await SqliteStore.open({ path: configOf("auto").database.path });
    const provider = new ScriptedProvider({ name: "native" });
    await using h = new Harness({ store, clock: new FakeClock(), provider });
    await h.start();
    await h.spawn();
  }
  await expect(serve({ config: configOf("auto"), logger: silentLogger })).rejects.toThrow(
    /1 sandboxes of provider native are here, but it cannot be used .* simulation/,
  );
  await (await serve({ config: configOf("mock"), logger: silentLogger })).close();
});
