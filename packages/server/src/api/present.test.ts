import { expect, it } from "vitest";
import type { FileEntry } from "../ports/index.ts";
import { presentFile, presentStats } from "./present.ts";

function timeOf(ms: number): string | undefined {
  const entry: FileEntry = {
    ...{ name: "f", path: "/f", type: "file", size: 1, mode: 0o644, uid: 0, gid: 0 },
    modifiedAt: new Date(ms),
  };
  return presentFile(entry).mod_time;
}

it.each([
  [0, "1970-01-01T00:00:00.000Z"],
  [Number.NaN, "1970-01-01T00:00:00.000Z"],
  [8.64e15, "9999-12-31T23:59:59.999Z"],
  [-8.64e15, "0001-01-01T00:00:00.000Z"],
])("a file's time of %d ms is told as one that every client reads", (ms, told) => {
  expect(timeOf(ms)).toBe(told);
});

it("a figure that is none is left out, and none is below zero", () => {
  const told = presentStats(
    { cpuUsageMs: Number.NaN, memoryBytes: -5, pids: Number.POSITIVE_INFINITY, diskBytes: 1.4 },
    2,
  );
  expect(told).toEqual({ memory_bytes: 0, disk_bytes: 1, commands: 2 });
});
