import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { addTarget } from "../../../scripts/rust-target.mjs";

let folder: string;
let libraries: string;
/** What the set-up says and what comes of it. */
const asked = async () => {
  const lines: string[] = [];
  const env = { ...process.env, LIBRARIES: libraries };
  const why = await addTarget("x-y-linux-musl", {
    folder,
    env,
    cwd: folder,
    log: (line) => lines.push(line),
  });
  return { why, lines };
};
const program = async (name: string, does: string) => {
  await writeFile(path.join(folder, name), `#!/bin/sh\n${does}\n`);
  await chmod(path.join(folder, name), 0o755);
};

beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "alcove-agent-target-"));
  libraries = path.join(folder, "target/lib");
  await program("rustc", 'echo "$LIBRARIES"');
});
afterEach(() => rm(folder, { recursive: true, force: true }));

test("a compiler that has the target is asked for nothing more", async () => {
  await mkdir(libraries, { recursive: true });
  await writeFile(path.join(libraries, "libstd-1.rlib"), "");
  expect(await asked()).toEqual({ why: undefined, lines: [] });
});

test("rustup adds it where it is missing, or half there", async () => {
  await mkdir(libraries, { recursive: true });
  await writeFile(path.join(libraries, "libaddr2line-1.rlib"), "");
  await program("rustup", 'test "$1 $2" = "target add" && touch "$LIBRARIES/libstd-1.rlib"');
  const { why, lines } = await asked();
  expect(why).toBeUndefined();
  expect(lines).toEqual([expect.stringMatching(/has no target x-y-linux-musl; asking rustup/)]);
});

test.each([
  ["is not installed", undefined, "rustup is not installed"],
  [
    "fails",
    "echo info: x >&2; echo 'error: no network' >&2; echo ' 0: trace' >&2; exit 1",
    "rustup: error: no network",
  ],
  ["is killed", "kill -9 $$", "rustup: it failed"],
  ["adds it elsewhere", "exit 0", "rustup has it for another toolchain"],
])("says why there is none where rustup %s", async (_how, does, told) => {
  if (does !== undefined) await program("rustup", does);
  expect((await asked()).why).toBe(told);
});
