import { Readable } from "node:stream";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { attackProbe, runScript } from "../../../test/support/attack-probe.ts";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import type { RuntimeId, SandboxOperations } from "../../ports/index.ts";
import type { NativeProvider } from "./native-provider.ts";

const soon = (ms = 20_000) => ({ signal: AbortSignal.timeout(ms) });
/** Few enough for every machine that runs tests; what hurts is that they fill the memory of their sandbox. */
const pidsLimit = 128;

await describeWith(
  ["root", "agent", "launcher", "native", "busybox"],
  "fork bombs in small sandboxes",
  () => {
    let home: NativeHome;
    let provider: NativeProvider;
    let probe: Buffer;
    const made: RuntimeId[] = [];

    beforeAll(async () => {
      probe = await attackProbe();
      home = await nativeHome();
      provider = home.open({ pidsLimit });
    }, 120_000);

    afterEach(async () => {
      await Promise.all(made.splice(0).map((runtimeId) => provider.destroy(runtimeId, soon())));
    });

    afterAll(async () => {
      await provider[Symbol.asyncDispose]();
      await home.remove();
    });

    async function sandbox(
      memoryMb: number,
    ): Promise<{ runtimeId: RuntimeId; operations: SandboxOperations }> {
      const runtimeId = randomIds.runtimeId();
      made.push(runtimeId);
      const sandboxId = randomIds.sandboxId();
      await provider.spawn(
        {
          runtimeId,
          sandboxId,
          image: testImage,
          memoryMb,
          vcpus: 0.5,
          env: {},
          expiresInMs: 600_000,
          metadata: {},
        },
        soon(),
      );
      return { runtimeId, operations: provider.sandbox(runtimeId) };
    }

    /** Starts a bomb that has more processes than memory for them. @returns how its command ends. */
    async function bomb(operations: SandboxOperations, memoryMb: number, timeoutMs: number) {
      await operations.files.write("/tmp/bomb", Readable.from([probe]), { ...soon(), mode: 0o755 });
      const kilobytes = Math.ceil((memoryMb * 1024 * 2) / pidsLimit);
      // The command's first process is small, so that the kernel takes others when memory is short.
      const script = `/tmp/bomb fork-bomb ${kilobytes} 0 & exec sleep 60`;
      const ended = runScript(operations, script, { user: "1000", timeoutMs });
      ended.catch(() => undefined);
      await expect
        .poll(async () => (await operations.stats(soon())).pids ?? 0, { timeout: 15_000 })
        .toBeGreaterThan(16);
      return { ended };
    }

    it.each([16, 32, 128])(
      "in %i MB the deadline of a command holds, and files and figures answer",
      async (memoryMb) => {
        const { operations } = await sandbox(memoryMb);
        const { ended } = await bomb(operations, memoryMb, 3_000);
        expect(await operations.files.stat("/tmp/bomb", soon(5_000))).toMatchObject({ type: "file" });
        await operations.files.write("/tmp/while", Readable.from([Buffer.from("fine")]), soon(5_000));
        expect((await operations.stats(soon(5_000))).memoryLimitBytes).toBe(memoryMb << 20);
        const { exit } = await ended;
        expect(exit?.reason).toBe("timeout");
        expect(exit?.durationMs).toBeLessThan(30_000);
        // The command has ended; what it started is still being ended for a moment.
        const again = () => runScript(operations, "echo after; cat /tmp/while").catch(() => undefined);
        await expect.poll(async () => (await again())?.output, { timeout: 30_000 }).toBe("after\nfine");
      },
    );

    it.each([16, 32, 128])(
      "in %i MB destroy takes less than 5 s, and another sandbox goes on",
      async (memoryMb) => {
        const [{ runtimeId, operations }, other] = [await sandbox(memoryMb), await sandbox(64)];
        const { ended } = await bomb(operations, memoryMb, 60_000);
        expect((await runScript(other.operations, "echo fine")).output).toBe("fine\n");
        const startedAt = performance.now();
        await provider.destroy(runtimeId, soon());
        expect(performance.now() - startedAt).toBeLessThan(5_000);
        await ended.catch(() => undefined);
      },
    );
  },
);
