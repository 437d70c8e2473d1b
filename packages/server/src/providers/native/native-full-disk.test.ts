import { execFileSync } from "node:child_process";
import { open, readdir, rm, statfs, truncate } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { runScript } from "../../../test/support/attack-probe.ts";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import type { RuntimeSpec } from "../../ports/index.ts";
import type { NativeProvider } from "./native-provider.ts";

const soon = () => ({ signal: AbortSignal.timeout(60_000) });
const MiB = 1024 * 1024;

await describeWith(
  ["root", "agent", "launcher", "native", "busybox"],
  "a disk of data_dir that is full",
  () => {
    let home: NativeHome;
    let provider: NativeProvider;
    beforeEach(async () => {
      home = await nativeHome();
      execFileSync("mount", ["-t", "tmpfs", "-o", "size=64m", "alcove-test", home.dataDir]);
      provider = home.open({ diskMb: 128 });
    });
    afterEach(async () => {
      for (const { runtimeId } of await provider.inventory(soon())) await provider.destroy(runtimeId, soon());
      await provider[Symbol.asyncDispose]();
      execFileSync("umount", ["--lazy", home.dataDir]);
      await home.remove();
    });

    const native = (name: string) => join(home.dataDir, "native", name);

    /** Leaves so much. */
    async function fill(leftBytes: number): Promise<void> {
      const path = join(home.dataDir, "filler");
      await using file = await open(path, "w");
      const chunk = Buffer.alloc(64 * 1024);
      let written = 0;
      try {
        for (;;) written += (await file.write(chunk)).bytesWritten;
      } catch (error) {
        expect(error).toMatchObject({ code: "ENOSPC" });
      }
      await truncate(path, written - leftBytes);
    }

    const empty = () => rm(join(home.dataDir, "filler"));

    async function spawned(): Promise<RuntimeSpec> {
      const spec: RuntimeSpec = {
        runtimeId: randomIds.runtimeId(),
        sandboxId: randomIds.sandboxId(),
        image: testImage,
        memoryMb: 64,
        vcpus: 1,
        env: {},
        expiresInMs: 600_000,
        metadata: {},
      };
      await provider.spawn(spec, soon());
      return spec;
    }

    it.each([
      ["no layer is ready", async () => undefined],
      ["nor their template made", () => rm(native("disk-128.img"))],
    ])(
      "is no refusal of the machine at a start where %s: once there is room, disks have their limit",
      async (_, take) => {
        expect(await provider.check(soon())).toMatchObject({ healthy: true });
        await provider[Symbol.asyncDispose]();
        for (const layer of await readdir(native("ahead")))
          await rm(join(native("ahead"), layer), { recursive: true });
        await take();
        await fill(12 * 1024);
        provider = home.open({ diskMb: 128 });
        expect(await provider.check(soon())).toMatchObject({
          healthy: false,
          untried: true,
          error: expect.stringMatching(/no room for|the disk of data_dir is full/),
        });
        await expect(spawned()).rejects.toMatchObject({ code: "storage_full" });
        await empty();
        const { healthy, notes } = await provider.check(soon());
        expect({ healthy, notes: notes.filter((note) => /limit of its own|copied/.test(note)) }).toEqual({
          healthy: true,
          notes: [],
        });
        const { runtimeId } = await spawned();
        const { diskLimitBytes = 0 } = await provider.sandbox(runtimeId).stats(soon());
        expect(diskLimitBytes).toBeGreaterThan(100 * MiB);
        expect(diskLimitBytes).toBeLessThanOrEqual(128 * MiB);
      },
    );

    it("is none either where the inodes are used up and the template is not made", async () => {
      expect(await provider.check(soon())).toMatchObject({ healthy: true });
      await provider[Symbol.asyncDispose]();
      for (const layer of await readdir(native("ahead")))
        await rm(join(native("ahead"), layer), { recursive: true });
      await rm(native("disk-128.img"));
      const inodes = (most: number) =>
        execFileSync("mount", ["-o", `remount,nr_inodes=${most}`, home.dataDir]);
      const { files, ffree } = await statfs(home.dataDir);
      inodes(files - ffree);
      provider = home.open({ diskMb: 128 });
      expect(await provider.check(soon())).toMatchObject({ healthy: false, untried: true });
      await expect(spawned()).rejects.toMatchObject({ code: "storage_full" });
      inodes(files);
      expect(await provider.check(soon())).toMatchObject({ healthy: true });
      const { runtimeId } = await spawned();
      const { diskLimitBytes = 0 } = await provider.sandbox(runtimeId).stats(soon());
      expect(diskLimitBytes).toBeGreaterThan(100 * MiB);
    });

    it("leaves those that run to be used and destroyed, where agent and root of this release are not there yet", async () => {
      const { runtimeId } = await spawned();
      await provider[Symbol.asyncDispose]();
      await rm(join(home.dataDir, "agents"), { recursive: true });
      for (const name of await readdir(native(".")))
        if (name.startsWith("host-")) await rm(native(name), { recursive: true });
      await fill(0);
      provider = home.open({ diskMb: 128 });
      await expect(spawned()).rejects.toMatchObject({ code: "storage_full" });
      await provider.adopt(runtimeId, soon());
      expect((await runScript(provider.sandbox(runtimeId), "echo alive")).output).toBe("alive\n");
      await provider.destroy(runtimeId, soon());
      expect(await provider.inventory(soon())).toEqual([]);
      await empty();
      expect(await provider.check(soon())).toMatchObject({ healthy: true });
      await spawned();
    });

    it("refuses spawns of a provider that has worked, and makes it not ill", async () => {
      await provider[Symbol.asyncDispose]();
      provider = home.open({ diskMb: 128, minFreeMb: 8 });
      expect(await provider.check(soon())).toMatchObject({ healthy: true });
      const { runtimeId } = await spawned();
      await fill(0);
      expect(await provider.check(soon())).toMatchObject({
        healthy: true,
        cannotSpawn: expect.stringContaining("below data_dir"),
      });
      // A look at the disk serves for a second.
      const refusal = async () => (await provider.check(soon())).cannotSpawn;
      await expect
        .poll(refusal, { timeout: 5_000 })
        .toMatch(/MB were free below data_dir, less than the 8 MB/);
      await expect(spawned()).rejects.toMatchObject({ code: "storage_full" });
      await provider.destroy(runtimeId, soon());
      await empty();
      expect((await provider.check(soon())).cannotSpawn).toBeUndefined();
    });
  },
);
