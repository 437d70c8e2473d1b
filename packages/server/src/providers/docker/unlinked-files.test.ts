import { mkdtemp, open, readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import type { RuntimeId } from "../../ports/index.ts";
import { processesOf, unlinkedMb, withUnlinked } from "./unlinked-files.ts";

const { signal } = new AbortController();

it.runIf(process.platform === "linux")(
  "unlinkedMb() counts what is held open without a name, once, on the devices that count",
  async () => {
    const root = await mkdtemp(join(tmpdir(), "alcove-unlinked-"));
    const devices = new Set([(await stat(root)).dev]);
    const before = await unlinkedMb([process.pid], { devices, signal });
    await using file = await open(join(root, "file"), "w+");
    await using _again = await open(join(root, "file"));
    await file.writeFile(Buffer.alloc(5 << 20, 1));
    expect(await unlinkedMb([process.pid], { devices, signal })).toBeCloseTo(before, 0);
    await rm(root, { recursive: true });
    expect(await unlinkedMb([process.pid], { devices, signal })).toBeCloseTo(before + 5, 0);
    expect(await unlinkedMb([process.pid], { devices: new Set(), signal })).toBe(0);
    // Of a process with too many what was counted until then still counts.
    const most = (await readdir("/proc/self/fd")).length + 2;
    expect(await unlinkedMb([process.pid, process.pid], { devices, signal, most })).toBeCloseTo(
      before + 5,
      0,
    );
    expect(await unlinkedMb([process.pid], { devices, signal, most: 0 })).toBe(0);
    expect(await unlinkedMb([process.pid], { devices, signal: AbortSignal.abort() })).toBe(0);
  },
);

it("processesOf() names none of a process that is not the container's", async () => {
  expect(await processesOf({ id: "0123456789abcdef", pid: process.pid })).toEqual([]);
});

it("withUnlinked() gives each its part of the time, and keeps the sizes of those whose turn comes too late", async () => {
  const [slow, quick, other] = ["rt-1", "rt-2", "rt-3"] as [RuntimeId, RuntimeId, RuntimeId];
  const sizes = new Map([
    [slow, 1],
    [quick, 2],
    [other, 3],
  ]);
  const untilItsEnd = (part: AbortSignal) =>
    new Promise((resolve) => part.addEventListener("abort", resolve));
  const look = async (runtimeId: RuntimeId, call: { signal: AbortSignal }) => {
    if (runtimeId === slow) await untilItsEnd(call.signal);
    return 10;
  };
  const inTime = await withUnlinked(sizes, look, { signal, withinMs: 1_500 });
  expect([...inTime.values()]).toEqual([11, 12, 13]);
  const closing = new AbortController();
  const late = await withUnlinked(
    sizes,
    async (runtimeId) => {
      if (runtimeId === quick) closing.abort(new Error("closed"));
      return 10;
    },
    { signal: closing.signal },
  );
  expect([...late.values()]).toEqual([11, 12, 3]);
  expect(await withUnlinked(sizes, look, { signal: AbortSignal.abort() })).toEqual(sizes);
});
