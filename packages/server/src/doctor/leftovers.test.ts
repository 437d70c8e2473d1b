import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { describeWith } from "../../test/support/requirements.ts";
import { closeGroupParents, openGroupParents } from "../providers/launcher/index.ts";
import { doctorInstance, makePlace, removeLeftovers } from "./leftovers.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "alcove-leftovers-"));
});
afterEach(async () => {
  await rm(folder, { recursive: true, force: true });
});

const deadPid = () => spawnSync("true").pid;

it("removes the folders of doctors that are dead, in the data directory and above, and nothing else", async () => {
  const data = path.join(folder, "data");
  await mkdir(data);
  const own = await makePlace(data);
  const ofDead = () => path.basename(own).replace(String(process.pid), String(deadPid()));
  await mkdir(path.join(data, ofDead(), "runtimes"), { recursive: true });
  await mkdir(path.join(folder, ofDead()));
  // Of another container: the number is nobody's here, and somebody's there.
  const elsewhere = `.alcove-doctor-${deadPid()}-4000000000-abc`;
  await mkdir(path.join(data, elsewhere));
  await writeFile(path.join(data, `.alcove-doctor-x`), "");
  // Groups of another's may be among them.
  const removed = await removeLeftovers(data);
  expect(removed.filter((left) => left.startsWith(folder))).toHaveLength(2);
  expect((await readdir(data)).sort()).toEqual([path.basename(own), ".alcove-doctor-x", elsewhere].sort());
  expect(await readdir(folder)).toEqual(["data"]);
});

await describeWith(["linux", "root"], "control groups", () => {
  it("end with what runs in them, when their doctor is dead; those of one that lives stay", async () => {
    const dead = await openGroupParents(doctorInstance(deadPid()));
    const living = await openGroupParents(doctorInstance(process.pid));
    if ("missing" in dead || "missing" in living) throw new Error("no groups can be made here");
    const sandbox = spawn("sleep", ["60"], { stdio: "ignore" });
    try {
      const group = [...dead.parents.values()][0] ?? "";
      await mkdir(path.join(group, "probe-1"));
      await writeFile(path.join(group, "probe-1", "cgroup.procs"), String(sandbox.pid));
      const ended = once(sandbox, "exit");
      await removeLeftovers(folder);
      expect((await ended)[1]).toBe("SIGKILL");
      for (const parent of dead.parents.values()) expect(existsSync(parent)).toBe(false);
      for (const parent of living.parents.values()) expect(existsSync(parent)).toBe(true);
    } finally {
      sandbox.kill("SIGKILL");
      await closeGroupParents(living);
    }
  });
});
