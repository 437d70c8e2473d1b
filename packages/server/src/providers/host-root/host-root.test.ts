import { chmod, mkdir, mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { expect, it } from "vitest";
import { makeHostRoot } from "./host-root.ts";

const asRoot = process.getuid?.() === 0;

it.runIf(asRoot)("a rooted service keeps the made-up root from the machine's other users", async () => {
  const dataDir = await mkdtemp(join(tmpdir(), "alcove-host-root-"));
  const folder = join(dataDir, "native");
  // As an earlier release may have left it.
  await mkdir(folder);
  await chmod(folder, 0o755);
  const made = await makeHostRoot(dataDir);
  expect(dirname(made)).toBe(folder);
  expect((await stat(join(made, "tmp"))).mode & 0o7777).toBe(0o1777);
  expect((await stat(folder)).mode & 0o7777).toBe(0o700);
  await chmod(folder, 0o755);
  expect(await makeHostRoot(dataDir)).toBe(made);
  expect((await stat(folder)).mode & 0o7777).toBe(0o700);
  await rm(dataDir, { recursive: true });
});
