import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, it, vi } from "vitest";
import { DiskReserve } from "./disk-reserve.ts";
import { currentRequestId, withinRequest } from "./request-scope.ts";

it("the space set aside is as large as was asked for, and no piece of it is like another", async () => {
  const directory = mkdtempSync(path.join(tmpdir(), "alcove-reserve-"));
  try {
    const bytes = 10 * 65_536 + 123;
    await using reserve = new DiskReserve({ directory, bytes });
    await reserve.keep();
    const kept = readFileSync(path.join(directory, "reserve"));
    expect(kept).toHaveLength(bytes);
    const pieces = Array.from({ length: 11 }, (_, n) => kept.toString("latin1", n * 65_536, n * 65_536 + 64));
    expect(new Set(pieces).size).toBe(11);
    expect(reserve.spend()).toBe(true);
  } finally {
    rmSync(directory, { recursive: true });
  }
});

it("what is told after the request that met the full disk names no request", async () => {
  const directory = mkdtempSync(path.join(tmpdir(), "alcove-reserve-"));
  // Soon, and in the scope it was armed in: a faked one has none.
  const armed = setTimeout;
  const soon = vi.spyOn(globalThis, "setTimeout").mockImplementation((task) => armed(task, 1));
  try {
    const told: (string | undefined)[] = [];
    // More than any disk has free.
    const logger = { warn: () => void told.push(currentRequestId()) };
    await using reserve = new DiskReserve({ directory, bytes: 2 ** 52, logger });
    withinRequest({ id: "r1", span: undefined }, () => void reserve.spend());
    for (let waited = 0; waited < 500 && told.length < 2; waited += 1)
      await new Promise((resolve) => armed(resolve, 10));
    expect(told).toEqual(["r1", undefined]);
  } finally {
    soon.mockRestore();
    rmSync(directory, { recursive: true });
  }
});
