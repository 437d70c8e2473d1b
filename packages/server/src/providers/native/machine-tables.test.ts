import { expect, it } from "vitest";
import { type MachineTables, notesOnTables, readMachineTables } from "./machine-tables.ts";

const amply: MachineTables = {
  openFiles: 9_223_372_036_854_775_807n,
  filterBytes: 528_482_304n,
  timestampsWithData: 0n,
  smallFragments: 1n,
  memoryBytes: 16 * 2 ** 30,
};

it("a machine whose tables are large enough needs no note, nor does one that does not tell", () => {
  expect(notesOnTables(amply)).toEqual([]);
  const untold = {
    openFiles: undefined,
    filterBytes: undefined,
    timestampsWithData: undefined,
    smallFragments: undefined,
  };
  expect(notesOnTables({ ...amply, ...untold })).toEqual([]);
});

it("what falls short is named with the setting that mends it", () => {
  const notes = notesOnTables({
    openFiles: 1_600_000n,
    filterBytes: 16_777_216n,
    timestampsWithData: 1n,
    smallFragments: 0n,
    memoryBytes: 16 * 2 ** 30,
  });
  expect(notes.map((note) => /sysctl (.+)$/.exec(note)?.[1])).toEqual([
    "fs.file-max=74051160",
    "net.core.bpf_jit_limit=134217728",
    "net.core.tstamp_allow_data=0",
    "net.core.high_order_alloc_disable=1",
  ]);
});

it("this machine can be asked", async () => {
  expect((await readMachineTables()).memoryBytes).toBeGreaterThan(0);
});
