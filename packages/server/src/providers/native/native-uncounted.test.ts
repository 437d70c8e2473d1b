import { readFile } from "node:fs/promises";
import { expect, it } from "vitest";
import { runScript } from "../../../test/support/attack-probe.ts";
import { nativeHome, testImage } from "../../../test/support/native.ts";
import { probedSandboxes, probePath } from "../../../test/support/native-sandboxes.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { guardStops } from "../../ports/index.ts";
import { readMachineMemory } from "./uncounted-memory.ts";

const memoryMb = 32;

await describeWith(
  ["root", "agent", "launcher", "native", "busybox"],
  "what the kernel holds for a sandbox and counts for nobody",
  () => {
    const sandboxes = probedSandboxes({ memoryMb, patienceMs: 30_000 });

    it.each([
      ["routes", 200],
      ["errors", 100],
    ])(
      "answers that nobody takes: %s of %i sockets of a small sandbox take no memory of the machine",
      async (what, sockets) => {
        const { take } = await sandboxes.spawn();
        const before = await kernelMemory();
        await take(what, sockets);
        // Whatever else runs on this machine needs less than this.
        expect((await kernelMemory()) - before).toBeLessThan(memoryMb * 6);
      },
    );

    it("datagrams that are never finished hold an eighth of the memory of a sandbox at most", async () => {
      const { operations, take } = await sandboxes.spawn({ memoryMb: 128 });
      const unfinished = await take("unfinished", 1_000);
      expect(unfinished).toBeGreaterThan(1_000);
      expect(unfinished * 1_024).toBeLessThanOrEqual((128 << 20) / 8);
      expect(await take("connections", 50)).toBe(50);
      await runScript(operations, "killall probe; while pidof probe; do sleep 0.1; done");
      await expect.poll(async () => take("datagram-sockets", 50), { timeout: 15_000 }).toBe(50);
    });

    it("sockets for connections that have no address yet take no place of those for datagrams", async () => {
      const { take } = await sandboxes.spawn();
      expect(await take("stream-sockets", 400)).toBe(400);
      expect(await take("datagram-sockets", 40)).toBe(40);
    });

    it("pieces of datagrams that are never finished hold a quarter of the memory of a sandbox at most, 32 KB each", async () => {
      const { take } = await sandboxes.spawn({ memoryMb: 128 });
      const pieces = await take("fragments", 6_000);
      expect(pieces).toBeGreaterThan(100);
      expect(pieces * 32 * 1_024).toBeLessThanOrEqual((128 << 20) / 4);
    });

    it("few sockets that tell of interfaces are to be had at a time, and programs that ask are answered", async () => {
      const { operations, take } = await sandboxes.spawn();
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
      const { operations, take } = await sandboxes.spawn({ memoryMb: 64 });
      expect(await take("connections", 200)).toBe(200);
      expect((await runScript(operations, "ip addr 2>&1")).output).toContain("127.0.0.1/8");
      expect(await take("routes-in-turn", 600)).toBe(600);
    });

    it("neither memory for options of packets nor for compiled filters is to be had", async () => {
      const { operations, take } = await sandboxes.spawn();
      expect(await take("packet-options", 10)).toBe(0);
      expect(await take("filters", 10)).toBe(0);
      const { output } = await runScript(operations, probePath);
      for (const name of ["socket-filter", "reuseport-filter"])
        expect(output).toContain(`${name} refused 92\n`);
      for (const name of ["seccomp-filter", "prctl-filter"]) expect(output).toContain(`${name} refused 22\n`);
    });

    it("connections that are closed do not wait for longer than the kernel has them wait", async () => {
      const { take } = await sandboxes.spawn({ memoryMb: 128 });
      expect(await take("orphans", 1_000)).toBe(1_000);
      const orphans = async () =>
        Number(/^TCP: .* orphan (\d+)/m.exec(await readFile("/proc/net/sockstat", "utf8"))?.[1]);
      await expect.poll(orphans, { timeout: 15_000 }).toBeLessThan(500);
    });

    it("a process has no more than 4096 open files", async () => {
      const { take } = await sandboxes.spawn();
      const taken = await take("files", 70_000);
      expect(taken).toBeGreaterThan(1_000);
      expect(taken).toBeLessThanOrEqual(4_096);
    });
  },
);

await describeWith(
  ["root", "agent", "launcher", "native", "busybox"],
  "what connections hold and the kernel counts for nobody",
  () => {
    const sandboxes = probedSandboxes({
      memoryMb: 64,
      patienceMs: 60_000,
      config: { maxUncountedPercent: 2 },
    });

    it("a sandbox whose connections hold the machine's memory is stopped and named, its neighbours are not", {
      timeout: 60_000,
    }, async () => {
      const ended: string[] = [];
      const { totalMb } = await readMachineMemory();
      const mostMb = Math.max(256, totalMb / 50);
      const hostile = await sandboxes.spawn({ memoryMb: Math.round(mostMb) });
      const neighbour = await sandboxes.spawn();
      using _ = {
        [Symbol.dispose]: sandboxes.provider.onExit((id, reason) => ended.push(`${id} ${reason}`)),
      };
      expect(await neighbour.take("connections", 100)).toBe(100);
      // Many, in which next to nothing waits.
      expect(await neighbour.take("orphans", 4_500)).toBe(4_500);
      // More than the guard lets be held on any machine this runs on, where each piece holds 32 KB. Where free memory is scattered, the
      // kernel gives 4 KB for each, so that it takes eight times as many.
      const pieces = Math.round((mostMb * 2 * 1_024) / 32);
      const { uncountedMb: beforeMb } = await readMachineMemory();
      const heldMb = async () => (await readMachineMemory()).uncountedMb - beforeMb;
      for (let times = 0; times < 8 && ended.length === 0 && (await heldMb()) < mostMb * 1.5; times++)
        await hostile.take("stream-fragments", pieces).catch(() => undefined);
      await expect.poll(() => ended, { timeout: 30_000 }).toHaveLength(1);
      expect(ended[0]).toMatch(
        new RegExp(`^${hostile.runtimeId} stopped: what waits in its sockets can hold`),
      );
      expect((await runScript(neighbour.operations, "echo alive")).output).toBe("alive\n");
    });
  },
);

await describeWith(
  ["root", "agent", "launcher", "native", "busybox"],
  "what the kernel keeps for a sandbox without bytes of anybody's",
  () => {
    const sandboxes = probedSandboxes({
      memoryMb: 128,
      patienceMs: 90_000,
      // The least that it lets be kept is 256 MB on the machines that this runs on.
      config: { maxUncountedPercent: 1 },
    });

    it.each([
      ["locks", 4_000_000, [guardStops.kernelMemory]],
      ["locks-of-files", 4_000_000, [guardStops.kernelMemory]],
      ["locks-of-mapped-files", 4_000_000, [guardStops.kernelMemory]],
      ["lists", 30_000, [guardStops.kernelMemory]],
      // Of a process whose first thread has ended.
      ["thread-locks-of-files", 4_000_000, [guardStops.kernelMemory]],
      ["thread-locks-of-mapped-files", 4_000_000, [guardStops.kernelMemory]],
      // The same, with another one that has ended, and is traced.
      ["ended-thread-locks-of-files", 4_000_000, [guardStops.kernelMemory]],
      // Calls that wait have files, of which the descriptors are closed.
      ["lists-being-sent", 8_000, [guardStops.kernelMemory]],
      ["lists-of-who-waits", 8_000, [guardStops.kernelMemory]],
      // The same, sent on from one to the next.
      ["lists-sent-in-turn", 8_000, [guardStops.kernelMemory]],
      // In the queue of a socket that only a call has which waits.
      ["lists-in-polled-sockets", 8_000, [guardStops.kernelMemory]],
      // Each process that has them is gone before it is looked at.
      ["lists-of-who-is-gone", 500, [guardStops.kernelMemory]],
      // The end of a connection waits in it like a byte: whichever guard looks first.
      ["unaccepted", 150_000, [guardStops.kernelMemory, guardStops.memory]],
    ] as const)(
      "a sandbox that has the kernel keep %s is stopped and named, its neighbours are not",
      {
        timeout: 90_000,
      },
      async (what, number, stops) => {
        const ended: string[] = [];
        const hostile = await sandboxes.spawn();
        const neighbour = await sandboxes.spawn();
        using _ = {
          [Symbol.dispose]: sandboxes.provider.onExit((id, reason) => ended.push(`${id} ${reason}`)),
        };
        expect(await neighbour.take("locks", 2_000)).toBe(2_000);
        expect(await neighbour.take("connections", 500)).toBe(500);
        const taking = hostile.take(what, number).catch(() => undefined);
        await expect.poll(() => ended, { timeout: 60_000 }).toHaveLength(1);
        await taking;
        expect(stops.filter((stop) => ended[0]?.startsWith(`${hostile.runtimeId} ${stop}`))).toHaveLength(1);
        expect((await runScript(neighbour.operations, "echo alive")).output).toBe("alive\n");
      },
    );

    it("what a neighbour is counted for hides no locks", { timeout: 120_000 }, async () => {
      const ended: string[] = [];
      const hostile = await sandboxes.spawn();
      const neighbour = await sandboxes.spawn({ memoryMb: 1_536 });
      using _ = {
        [Symbol.dispose]: sandboxes.provider.onExit((id, reason) => ended.push(`${id} ${reason}`)),
      };
      await neighbour.take("absent", 2_400_000);
      const taking = hostile.take("locks-of-files", 3_000_000).catch(() => undefined);
      // Before the neighbour's names go with their program.
      await expect.poll(() => ended, { timeout: 30_000 }).toHaveLength(1);
      await taking;
      expect(ended[0]).toContain(`${hostile.runtimeId} ${guardStops.kernelMemory}`);
    });
  },
);

await describeWith(
  ["root", "agent", "launcher", "native", "busybox"],
  "what a sandbox holds and the kernel counts for it",
  () => {
    const sandboxes = probedSandboxes({
      memoryMb: 64,
      patienceMs: 60_000,
      config: { maxUncountedPercent: 2 },
    });

    it("ends no neighbour whose connections are full", async () => {
      const ended: string[] = [];
      const neighbour = await sandboxes.spawn();
      using _ = {
        [Symbol.dispose]: sandboxes.provider.onExit((id, reason) => ended.push(`${id} ${reason}`)),
      };
      const before = await readMachineMemory();
      const mostMb = Math.max(256, before.totalMb / 50);
      const large = await sandboxes.spawn({ memoryMb: Math.round(mostMb * 2) });
      expect(await neighbour.take("streams", 20)).toBeGreaterThan(1_000_000);
      await large.take("pairs", Math.round(mostMb * 4));
      const { uncountedMb } = await readMachineMemory();
      expect(uncountedMb - before.uncountedMb).toBeGreaterThan(mostMb);
      // Several looks of the guard.
      await new Promise((resolve) => setTimeout(resolve, 3_000));
      expect(ended).toEqual([]);
    });
  },
);

/** MB that the kernel holds for itself and cannot give back. */
async function kernelMemory(): Promise<number> {
  const text = await readFile("/proc/meminfo", "utf8");
  return Number(/^SUnreclaim: +(\d+) kB$/m.exec(text)?.[1]) / 1024;
}

await describeWith(["root", "agent", "launcher", "native", "busybox"], "the guards of native", () => {
  it("tell which of them is helpless, and none that is off", async () => {
    const home = await nativeHome();
    const memory = { totalMb: 10_000, uncountedMb: 300 };
    try {
      const config = { minFreeMb: 1, maxUncountedPercent: 10 };
      await using provider = home.open(config, { machineMemory: async () => memory });
      const helpless = () => provider.guards.filter((one) => one.helpless).map(({ guard }) => guard);
      expect(provider.guards.map(({ guard }) => guard)).toEqual(["disk", "memory", "kernel_memory"]);
      const spec = { runtimeId: randomIds.runtimeId(), sandboxId: randomIds.sandboxId(), image: testImage };
      const signal = AbortSignal.timeout(30_000);
      const sizes = { memoryMb: 64, vcpus: 1, env: {}, expiresInMs: 600_000, metadata: {} };
      await provider.spawn({ ...spec, ...sizes }, { signal });
      expect(helpless()).toEqual([]);
      memory.uncountedMb = 5_000;
      await expect.poll(helpless, { timeout: 10_000 }).toEqual(["memory"]);
      await provider.destroy(spec.runtimeId, { signal });
      expect(helpless()).toEqual([]);
      await using off = home.open({ minFreeMb: 0, maxUncountedPercent: 0 });
      expect(off.guards).toEqual([]);
    } finally {
      await home.remove();
    }
  });
});
