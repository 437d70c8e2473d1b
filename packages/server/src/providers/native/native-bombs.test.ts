import { Readable } from "node:stream";
import { expect, it } from "vitest";
import { runScript } from "../../../test/support/attack-probe.ts";
import { probedSandboxes, probePath } from "../../../test/support/native-sandboxes.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import type { SandboxOperations } from "../../ports/index.ts";

const soon = (ms = 20_000) => ({ signal: AbortSignal.timeout(ms) });
/** Few enough for every machine that runs tests; what hurts is that they fill the memory of their sandbox. */
const pidsLimit = 128;

await describeWith(
  ["root", "agent", "launcher", "native", "busybox"],
  "fork bombs in small sandboxes",
  () => {
    const sandboxes = probedSandboxes({
      memoryMb: 64,
      vcpus: 0.5,
      config: { pidsLimit },
      patienceMs: 20_000,
    });

    /** Starts a bomb that has more processes than memory for them. @returns how its command ends. */
    async function bomb(operations: SandboxOperations, memoryMb: number, timeoutMs: number) {
      const kilobytes = Math.ceil((memoryMb * 1024 * 2) / pidsLimit);
      // The command's first process is small, so that the kernel takes others when memory is short.
      const script = `${probePath} fork-bomb ${kilobytes} 0 & exec sleep 60`;
      const ended = runScript(operations, script, { user: "1000", timeoutMs });
      ended.catch(() => undefined);
      await expect
        .poll(async () => (await operations.stats(soon())).pids ?? 0, { timeout: 15_000 })
        .toBeGreaterThan(16);
      return { ended };
    }

    it.each([16, 32, 128])(
      "in %i MB the deadline of a command holds, and files and figures answer",
      { timeout: 60_000 },
      async (memoryMb) => {
        const { operations } = await sandboxes.spawn({ memoryMb });
        const { ended } = await bomb(operations, memoryMb, 3_000);
        expect(await operations.files.stat(probePath, soon(5_000))).toMatchObject({ type: "file" });
        await operations.files.write("/tmp/while", Readable.from([Buffer.from("fine")]), soon(5_000));
        expect((await operations.stats(soon(5_000))).memoryLimitBytes).toBe(memoryMb << 20);
        const { exit } = await ended;
        expect(exit?.reason).toBe("timeout");
        expect(exit?.durationMs).toBeLessThan(6_000);
        // The command has ended; what it started is still being ended for a moment.
        const again = () => runScript(operations, "echo after; cat /tmp/while").catch(() => undefined);
        await expect.poll(async () => (await again())?.output, { timeout: 30_000 }).toBe("after\nfine");
      },
    );

    it.each([16, 32, 128])(
      "in %i MB destroy takes less than 5 s, and another sandbox goes on",
      { timeout: 60_000 },
      async (memoryMb) => {
        const [{ runtimeId, operations }, other] = [
          await sandboxes.spawn({ memoryMb }),
          await sandboxes.spawn(),
        ];
        const { ended } = await bomb(operations, memoryMb, 60_000);
        expect((await runScript(other.operations, "echo fine")).output).toBe("fine\n");
        const startedAt = performance.now();
        await sandboxes.provider.destroy(runtimeId, soon());
        expect(performance.now() - startedAt).toBeLessThan(5_000);
        await ended.catch(() => undefined);
      },
    );
  },
);
