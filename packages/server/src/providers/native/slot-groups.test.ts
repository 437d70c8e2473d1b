import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pino } from "pino";
import { afterEach, expect, test } from "vitest";
import type { RuntimeSlot } from "../../ports/index.ts";
import { SlotGroups } from "./slot-groups.ts";

const megabyte = 1024 * 1024;
const limits = { pidsLimit: 64 };
const slotOf = (uid: number, memoryMb: number, users: number): RuntimeSlot => ({
  vmId: "vm-1",
  uid,
  vm: { memoryMb, vcpus: 1, users },
  shareMb: Math.floor(memoryMb / users),
});

const v1 = "/sys/fs/cgroup";
const hasV1 = process.getuid?.() === 0 && existsSync(join(v1, "memory", "memory.limit_in_bytes"));

const clear: (() => void)[] = [];
afterEach(() => {
  for (const each of clear.splice(0).reverse()) each();
});

function logged() {
  const lines: Record<string, unknown>[] = [];
  const logger = pino({ level: "warn" }, { write: (line) => lines.push(JSON.parse(line)) });
  return { lines, logger };
}

/**
 * Files in place of the kernel's. What is shorter than before does not shorten them; a directory that is made has none, so that its
 * limits cannot be written.
 */
function inFiles(version: 1 | 2, controller: string) {
  const dir = mkdtempSync(join(tmpdir(), "alcove-slots-"));
  clear.push(() => rmSync(dir, { recursive: true }));
  const groups = new SlotGroups(version, new Map([[controller, dir]]), logged().logger);
  const put = (group: string, files: Record<string, string>) => {
    mkdirSync(join(dir, group), { recursive: true });
    for (const [file, text] of Object.entries(files)) writeFileSync(join(dir, group, file), text);
  };
  const megabytes = (group: string, file: string) =>
    Number(readFileSync(join(dir, group, file), "utf8")) / megabyte;
  return { dir, groups, put, megabytes };
}

/** A group of the kernel's, empty again at the end. */
function kernelGroup(controller: string): string {
  const dir = mkdtempSync(join(v1, controller, "alcove-slots-"));
  clear.push(() => {
    for (const below of ["vm-1/user-10001", "vm-1/user-10002", "vm-1", ""])
      if (existsSync(join(dir, below))) rmdirSync(join(dir, below));
  });
  return dir;
}

const fresh2 = {
  "cgroup.subtree_control": "",
  "memory.max": "max\n",
  "memory.swap.max": "max\n",
  "cpu.max": "max 100000\n",
  "pids.max": "max\n",
};

test("v2: a VM has room for the whole parts of all its users, also for parts that were larger", () => {
  const { groups, put, megabytes } = inFiles(2, "unified");
  for (const group of ["vm-1", "vm-1/user-10001", "vm-1/user-10002"]) put(group, fresh2);
  using _first = groups.hold(slotOf(10_001, 800, 4), limits);
  expect(megabytes("vm-1/user-10001", "memory.max")).toBe(200 + 16);
  expect(megabytes("vm-1", "memory.max")).toBe(800 + 4 * 17);
  // Less is configured now: what the first has stays, what is new is of the new size.
  using _second = groups.hold(slotOf(10_002, 160, 4), limits);
  expect(megabytes("vm-1/user-10002", "memory.max")).toBe(40 + 16);
  expect(megabytes("vm-1", "memory.max")).toBe(216 + 56 + 2);
  using _again = groups.hold(slotOf(10_001, 160, 4), limits);
  expect(megabytes("vm-1/user-10001", "memory.max")).toBe(216);
  expect(megabytes("vm-1", "memory.max")).toBe(216 + 56 + 2);
  using _raised = groups.hold(slotOf(10_002, 880, 4), limits);
  expect(megabytes("vm-1/user-10002", "memory.max")).toBe(220 + 16);
  expect(megabytes("vm-1", "memory.max")).toBe(880 + 4 * 17);
});

test.for([1, 2] as const)("v%i: a group whose limits cannot be written is refused each time", (version) => {
  const { dir, groups } = inFiles(version, version === 1 ? "memory" : "unified");
  for (let attempt = 1; attempt <= 4; attempt++) {
    expect(() => groups.hold(slotOf(10_001, 128, 2), limits), `attempt ${attempt}`).toThrow(/ENOENT/);
    expect(readdirSync(dir)).toEqual([]);
  }
  // One that is there and has no limit at all is no better.
  mkdirSync(join(dir, "vm-1"));
  expect(() => groups.hold(slotOf(10_001, 128, 2), limits)).toThrow(/ENOENT/);
});

test.skipIf(!hasV1)("a limit that the kernel does not take is told once, with both values", () => {
  const parent = kernelGroup("cpu");
  const { lines, logger } = logged();
  const groups = new SlotGroups(1, new Map([["cpu", parent]]), logger);
  const slot = slotOf(10_001, 128, 2);
  using _first = groups.hold({ ...slot, vm: { ...slot.vm, vcpus: 2 } }, limits);
  // No group may have less than one in it.
  writeFileSync(join(parent, "vm-1", "user-10001", "cpu.cfs_quota_us"), "200000");
  using _second = groups.hold(slot, limits);
  using _third = groups.hold(slot, limits);
  expect(lines).toEqual([
    expect.objectContaining({
      group: "vm-1",
      file: "cpu.cfs_quota_us",
      value: "125000",
      present: "225000",
    }),
  ]);
});

test.skipIf(!hasV1)("v1: a raise and a lowering reach the kernel's groups", () => {
  const parent = kernelGroup("memory");
  const { lines, logger } = logged();
  const groups = new SlotGroups(1, new Map([["memory", parent]]), logger);
  const megabytes = (group: string) =>
    ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
      .filter((file) => readdirSync(join(parent, group)).includes(file))
      .map((file) => Number(readFileSync(join(parent, group, file), "utf8")) / megabyte);
  const each = (value: number) => megabytes("vm-1").map(() => value);
  {
    using _one = groups.hold(slotOf(10_001, 300, 3), limits);
    expect(megabytes("vm-1")).toEqual(each(351));
    expect(megabytes("vm-1/user-10001")).toEqual(each(116));
    using _raised = groups.hold(slotOf(10_001, 900, 3), limits);
    expect(megabytes("vm-1")).toEqual(each(951));
    expect(megabytes("vm-1/user-10001")).toEqual(each(316));
    using _lowered = groups.hold(slotOf(10_002, 300, 3), limits);
    expect(megabytes("vm-1/user-10002")).toEqual(each(116));
    expect(megabytes("vm-1")).toEqual(each(316 + 116 + 2));
  }
  for (const uid of [10_001, 10_002]) groups.tidy({ vmId: "vm-1", uid });
  expect(readdirSync(parent)).not.toContain("vm-1");
  expect(lines).toEqual([]);
});
