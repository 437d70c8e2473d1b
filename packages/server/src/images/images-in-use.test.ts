import fs from "node:fs";
import { expect, it } from "vitest";
import { agentBinary } from "../../test/support/agent-binary.ts";
import { describeWith } from "../../test/support/requirements.ts";
import { busyboxRootfs } from "../../test/support/tiny-images.ts";
import { openImageStore } from "../images.ts";
import { silentLogger } from "../platform/logger.ts";
import { randomIds } from "../platform/random-ids.ts";
import { shell } from "../ports/contract/provider/harness.ts";
import { NativeProvider } from "../providers/native/index.ts";

const options = {
  /** One for each call. */
  get signal() {
    return AbortSignal.timeout(60_000);
  },
};

await describeWith(
  ["native", "agent", "launcher", "busybox"],
  "an image that a native sandbox runs on",
  () => {
    it("stays until the sandbox is destroyed, with the owners of its archive inside", async () => {
      const dataDir = fs.mkdtempSync("/tmp/alcove-in-use-");
      const images = await openImageStore({
        dataDir,
        aliases: {},
        pullPolicy: "never",
        logger: silentLogger,
      });
      await images.importFrom((await busyboxRootfs()).tar, "tiny", options);
      const provider = new NativeProvider({
        config: {
          defaultImage: "tiny",
          networkMode: "none",
          networkAllow: [],
          networkConnections: 512,
          networkMbit: 200,
          uidBase: 1_879_048_192,
          pidsLimit: 64,
          diskMb: 0,
          minFreeMb: 0,
          maxUncountedPercent: 0,
          addedCaps: [],
          prepared: 0,
        },
        dataDir,
        instanceId: `images${process.pid}`,
        images,
        agentBinary: agentBinary("alcove-agent"),
        launcherBinary: agentBinary("alcove-launch"),
        logger: silentLogger,
      });
      const runtimeId = randomIds.runtimeId();
      try {
        const spawned = await provider.spawn(
          {
            runtimeId,
            sandboxId: randomIds.sandboxId(),
            image: "tiny",
            memoryMb: 64,
            vcpus: 1,
            env: {},
            expiresInMs: 60_000,
            metadata: {},
          },
          options,
        );
        expect(spawned.image).toBe("tiny:latest");
        await expect(images.remove("tiny", options)).rejects.toThrow(`native/${runtimeId}`);
        const script = "stat -c %u /bin/busybox /home/app; cat /etc/hostname";
        await using view = await provider.sandbox(runtimeId).execs.start(shell(script), options);
        let text = "";
        for await (const event of view.events) if (event.type === "output") text += event.data.toString();
        expect(text).toBe("0\n1000\ntiny\n");
      } finally {
        await provider.destroy(runtimeId, options);
        await provider[Symbol.asyncDispose]();
      }
      await images.remove("tiny", options);
      expect(fs.readdirSync(`${dataDir}/images/rootfs`)).toEqual([]);
      fs.rmSync(dataDir, { recursive: true, force: true });
    });
  },
);
