import { readFile } from "node:fs/promises";
import { Readable } from "node:stream";
import { afterAll, beforeAll, expect, it } from "vitest";
import { attackProbe, runScript } from "../../../test/support/attack-probe.ts";
import { type NativeHome, nativeHome, testImage } from "../../../test/support/native.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import type { RuntimeId } from "../../ports/index.ts";
import type { NativeProvider } from "./native-provider.ts";

const soon = (ms = 30_000) => ({ signal: AbortSignal.timeout(ms) });
const memoryMb = 32;

await describeWith(
  ["root", "agent", "launcher", "native", "busybox"],
  "what the kernel holds for a sandbox and counts for nobody",
  () => {
    let home: NativeHome;
    let provider: NativeProvider;
    let probe: Buffer;
    const made: RuntimeId[] = [];

    beforeAll(async () => {
      probe = await attackProbe();
      home = await nativeHome();
      provider = home.open();
    }, 120_000);

    afterAll(async () => {
      await Promise.all(made.map((runtimeId) => provider.destroy(runtimeId, soon())));
      await provider[Symbol.asyncDispose]();
      await home.remove();
    });

    async function sandbox(image = testImage, memory = memoryMb) {
      const runtimeId = randomIds.runtimeId();
      made.push(runtimeId);
      const sandboxId = randomIds.sandboxId();
      await provider.spawn(
        {
          runtimeId,
          sandboxId,
          image,
          memoryMb: memory,
          vcpus: 1,
          env: {},
          expiresInMs: 600_000,
          metadata: {},
        },
        soon(),
      );
      const operations = provider.sandbox(runtimeId);
      await operations.files.write("/tmp/probe", Readable.from([probe]), { ...soon(), mode: 0o755 });
      return {
        operations,
        /** Takes as much as it gets of something and keeps it. @returns how much that was. */
        take: async (what: string, number: number) => {
          const out = `/tmp/${what}`;
          const script = `/tmp/probe ${what} ${number} 300 > ${out} 2>&1 & while [ ! -s ${out} ]; do sleep 0.1; done; cat ${out}`;
          return Number((await runScript(operations, script)).output);
        },
      };
    }

    it.each([
      ["routes", 200],
      ["errors", 100],
    ])(
      "answers that nobody takes: %s of %i sockets of a small sandbox take no memory of the machine",
      async (what, sockets) => {
        const { take } = await sandbox();
        const before = await kernelMemory();
        await take(what, sockets);
        // Whatever else runs on this machine needs less than this.
        expect((await kernelMemory()) - before).toBeLessThan(memoryMb * 6);
      },
    );

    it("few sockets that tell of interfaces are to be had at a time, and programs that ask are answered", async () => {
      const { operations, take } = await sandbox();
      const asks = async () => (await runScript(operations, "ip addr 2>&1")).output;
      expect(await asks()).toContain("127.0.0.1/8");
      const taken = await take("route-sockets", 1_000);
      expect(taken).toBeGreaterThan(16);
      expect(taken).toBeLessThanOrEqual(256);
      await runScript(operations, "killall probe; while pidof probe; do sleep 0.1; done");
      // What was granted just now counts as there.
      await expect.poll(asks, { timeout: 15_000 }).toContain("127.0.0.1/8");
    });

    it("programs that ask for interfaces are answered beside many connections, and however often they ask", async () => {
      const { operations, take } = await sandbox(testImage, 64);
      expect(await take("connections", 200)).toBe(200);
      expect((await runScript(operations, "ip addr 2>&1")).output).toContain("127.0.0.1/8");
      expect(await take("routes-in-turn", 600)).toBe(600);
    });

    it("neither memory for options of packets nor for compiled filters is to be had", async () => {
      const { operations, take } = await sandbox();
      expect(await take("packet-options", 10)).toBe(0);
      expect(await take("filters", 10)).toBe(0);
      const { output } = await runScript(operations, "/tmp/probe");
      for (const name of ["socket-filter", "reuseport-filter"])
        expect(output).toContain(`${name} refused 92\n`);
      for (const name of ["seccomp-filter", "prctl-filter"]) expect(output).toContain(`${name} refused 22\n`);
    });

    it("a process has no more than 4096 open files", async () => {
      const { take } = await sandbox();
      const taken = await take("files", 70_000);
      expect(taken).toBeGreaterThan(1_000);
      expect(taken).toBeLessThanOrEqual(4_096);
    });
  },
);

/** MB that the kernel holds for itself and cannot give back. */
async function kernelMemory(): Promise<number> {
  const text = await readFile("/proc/meminfo", "utf8");
  return Number(/^SUnreclaim: +(\d+) kB$/m.exec(text)?.[1]) / 1024;
}
