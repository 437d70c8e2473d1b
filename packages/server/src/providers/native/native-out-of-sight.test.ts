import { mkdir, rename, rm, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { runScript } from "../../../test/support/attack-probe.ts";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { type RuntimeId, Unavailable } from "../../ports/index.ts";
import type { NativeProvider } from "./native-provider.ts";

const soon = (ms = 15_000) => ({ signal: AbortSignal.timeout(ms) });

await describeWith(
  ["root", "agent", "launcher", "native", "busybox"],
  "native whose directories are out of sight",
  () => {
    let home: NativeHome;
    let provider: NativeProvider;
    let runtimeId: RuntimeId;
    let root: string;
    const spawn = async (id = randomIds.runtimeId()) => {
      const spec = { runtimeId: id, sandboxId: randomIds.sandboxId(), image: testImage };
      const size = { memoryMb: 64, vcpus: 1, env: {}, expiresInMs: 600_000, metadata: {} };
      await provider.spawn({ ...spec, ...size }, soon());
      return id;
    };
    /** More at once than there are idle connections: some are made now. */
    const works = async () => {
      const script = "sleep 0.1; echo works";
      const runs = Array.from({ length: 20 }, () => runScript(provider.sandbox(runtimeId), script));
      for (const { output } of await Promise.all(runs)) expect(output).toBe("works\n");
    };

    beforeEach(async () => {
      home = await nativeHome();
      provider = home.open();
      root = join(home.dataDir, "runtimes");
      runtimeId = await spawn();
    });
    afterEach(async () => {
      await provider[Symbol.asyncDispose]();
      await home.remove();
    });

    it("concludes nothing, makes and ends nothing, and goes on when they are back", async () => {
      const away = `${home.dataDir}-away`;
      await rename(home.dataDir, away);
      const refused = async () => {
        const way = /bring the directory back, or, if it is lost, restart the service/;
        await expect(provider.inventory(soon())).rejects.toThrow(way);
        const refusedId = randomIds.runtimeId();
        await expect(spawn(refusedId)).rejects.toThrow(Unavailable);
        await provider.destroy(refusedId, soon());
        await expect(provider.destroy(runtimeId, soon())).rejects.toThrow(Unavailable);
        expect(await provider.check(soon())).toMatchObject({
          healthy: false,
          error: expect.stringMatching(way),
        });
      };
      await refused();
      // Nothing was made in their place that would be in the way of their return.
      await expect(rmdir(home.dataDir)).rejects.toThrow("ENOENT");
      // An empty file system mounted there looks like this.
      await mkdir(join(root, "native"), { recursive: true });
      await refused();
      await works();
      await rm(home.dataDir, { recursive: true });
      await rename(away, home.dataDir);
      expect(await provider.inventory(soon())).toMatchObject([{ runtimeId, state: "running" }]);
      await works();
      await provider.destroy(await spawn(), soon());
    });

    it("counts a runtime whose process file is lost as unreadable, not as dead, and a later service reaches it", async () => {
      await rm(join(root, "native", runtimeId, "process.json"));
      expect(await provider.inventory(soon())).toMatchObject([{ runtimeId, state: "unreadable" }]);
      await works();
      await provider[Symbol.asyncDispose]();
      provider = home.open();
      expect(await provider.inventory(soon())).toMatchObject([{ runtimeId, state: "unreadable" }]);
      await provider.adopt(runtimeId, soon());
      await works();
    });
  },
);
