import { mkdtemp, open, readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { processesOf, unlinkedMb } from "./unlinked-files.ts";

it.runIf(process.platform === "linux")(
  "unlinkedMb() counts what is held open without a name, once, on the devices that count",
  async () => {
    const root = await mkdtemp(join(tmpdir(), "alcove-unlinked-"));
    const devices = new Set([(await stat(root)).dev]);
    const before = await unlinkedMb([process.pid], { devices });
    await using file = await open(join(root, "file"), "w+");
    await using _again = await open(join(root, "file"));
    await file.writeFile(Buffer.alloc(5 << 20, 1));
    expect(await unlinkedMb([process.pid], { devices })).toBeCloseTo(before, 0);
    await rm(root, { recursive: true });
    expect(await unlinkedMb([process.pid], { devices })).toBeCloseTo(before + 5, 0);
    expect(await unlinkedMb([process.pid], { devices: new Set() })).toBe(0);
    // Of a process with too many what was counted until then still counts.
    const most = (await readdir("/proc/self/fd")).length + 2;
    expect(await unlinkedMb([process.pid, process.pid], { devices, most })).toBeCloseTo(before + 5, 0);
    expect(await unlinkedMb([process.pid], { devices, most: 0 })).toBe(0);
  },
);

it("processesOf() names none of a process that is not the container's", async () => {
  expect(await processesOf({ id: "0123456789abcdef", pid: process.pid })).toEqual([]);
});
