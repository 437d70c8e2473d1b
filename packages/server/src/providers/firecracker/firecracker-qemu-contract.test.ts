import { expect, it, vi } from "vitest";
import { firecrackerHome, testImage } from "../../../test/support/firecracker/firecracker-home.ts";
import { firstMissing } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { run, soon } from "../../ports/contract/provider/harness.ts";
import { providerContract } from "../../ports/contract/provider-contract.ts";

/** A boot takes seconds, on a machine that does other things as well. */
vi.setConfig({ testTimeout: 90_000 });

const missing = await firstMissing(["linux", "agent", "mkfs", "qemu-guest"]);

/** Behind a fake of Firecracker, with guests of QEMU: a real kernel, the agent as its first process, disks and vsock. */
providerContract("firecracker, guests of QEMU", {
  ...missing,
  create: async () => {
    const home = await firecrackerHome("qemu");
    return {
      provider: home.open(),
      image: testImage,
      restart: async () => home.open(),
      close: () => home.remove(),
    };
  },
});

/** The fake boots what it restores: that state and memory are Firecracker's own to read, a host with KVM has to show. */
it.skipIf(missing.skip !== undefined)(
  "a machine that is restored is renewed: it has its own name, the time of now, and commands run in it",
  async () => {
    const home = await firecrackerHome("qemu");
    const provider = home.open({ config: { snapshots: true } });
    try {
      for (const time of ["boots", "is restored"]) {
        const { runtimeId, sandboxId } = {
          runtimeId: randomIds.runtimeId(),
          sandboxId: randomIds.sandboxId(),
        };
        const spec = { runtimeId, sandboxId, image: testImage, memoryMb: 256, vcpus: 1 };
        const stages: string[] = [];
        await provider.spawn(
          { ...spec, env: {}, expiresInMs: null, metadata: {} },
          { ...soon(80_000), onStage: (name) => stages.push(name) },
        );
        const { stdout } = await run(provider.sandbox(runtimeId), "hostname; date +%s");
        const [name, seconds] = stdout.trim().split("\n");
        expect(name).toBe(sandboxId);
        expect(Math.abs(Number(seconds) * 1000 - Date.now())).toBeLessThan(30_000);
        expect(stages).toContain(time === "boots" ? "boot" : "restore");
        await provider.snapshotsSettled();
        if (time === "boots") expect(await provider.snapshots(soon())).toHaveLength(1);
        const lines = await provider.logs(runtimeId, { ...soon(), lines: 100 });
        expect(lines.join("\n").includes("the machine is renewed")).toBe(time !== "boots");
        await provider.destroy(runtimeId, soon());
      }
    } finally {
      await provider[Symbol.asyncDispose]();
      await home.remove();
    }
  },
);
