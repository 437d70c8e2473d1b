import { copyFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, it } from "vitest";
import { bootAgentGuest, guestDisks } from "../../../test/support/agent-guest.ts";
import { eventually } from "../../../test/support/http.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { busyboxRootfs } from "../../../test/support/tiny-images.ts";
import { run } from "../../ports/contract/provider/harness.ts";

/** Its first command says where the stack of the agent is, which is another place at every boot. */
const bootId = "grep stack /proc/1/maps";

/**
 * What Firecracker does with a snapshot, done by QEMU: memory and devices of a machine whose agent serves and belongs to nobody
 * are written to a file, and machines go on from there.
 */
await describeWith(["linux", "agent", "mkfs", "qemu-guest"], "a microVM's guest that was saved", () => {
  it("goes on, as often as it is restored, and answers sooner than one that boots", {
    timeout: 240_000,
  }, async () => {
    await using disks = await guestDisks();
    const rootfs = await disks.rootfs((await busyboxRootfs()).dir);
    const timed = async (layer: string, from?: { file: string }) => {
      const startedAt = performance.now();
      await using guest = await bootAgentGuest({ rootfs, layer, ...(from && { from }) });
      await guest.configure();
      const { stdout } = await run(guest.client, bootId);
      return { ms: performance.now() - startedAt, boot: stdout };
    };
    const cold = await timed(await disks.layer());

    const layer = await disks.layer();
    await using template = await bootAgentGuest({ rootfs, layer, from: "to be saved" });
    await eventually(() => template.console().includes("started as process 1") || undefined, 120_000);
    const file = join(disks.folder, "memory");
    await template.save(file);
    const restored: { ms: number; boot: string }[] = [];
    for (const copy of ["one.img", "two.img"]) {
      // The memory knows what is on its disk.
      await copyFile(layer, join(disks.folder, copy));
      restored.push(await timed(join(disks.folder, copy), { file }));
    }

    const [first, second] = restored.map(({ boot }) => boot);
    expect(second).toBe(first);
    expect(first).not.toBe(cold.boot);
    const times = restored.map(({ ms }) => ms);
    expect(Math.min(...times)).toBeLessThan(cold.ms);
    process.stdout.write(
      `restored in ${times.map(Math.round).join(" and ")} ms, booted in ${Math.round(cold.ms)} ms\n`,
    );
  });
});
