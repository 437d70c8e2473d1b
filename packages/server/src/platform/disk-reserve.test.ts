import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, it } from "vitest";
import { DiskReserve } from "./disk-reserve.ts";

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
