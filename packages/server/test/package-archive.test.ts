import { spawnSync } from "node:child_process";
import { chmodSync, copyFileSync, mkdirSync, readFileSync, utimesSync, writeFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { type Entry, withFolders } from "../../../scripts/package/archive.ts";
import { contentsOf, productionPackages } from "../../../scripts/package/contents.ts";
import { compress, debianEntries, writeDebianPackage } from "../../../scripts/package/deb.ts";
import { projectRoot } from "./support/agent-binary.ts";
import { findProgram } from "./support/programs.ts";

let home: string;
beforeEach(async () => {
  home = await mkdtemp(path.join(tmpdir(), "alcove-package-"));
});
afterEach(() => rm(home, { recursive: true, force: true }));

const mtime = new Date(1_700_000_000_000);
const long = `${"d".repeat(120)}/${"f".repeat(60)}`;

/** Two files of a build that was made in `folder`, at `builtAt`. */
function built(folder: string, builtAt: Date): Entry[] {
  mkdirSync(folder);
  return ["b", long, "a/c"].map((name, index) => {
    const source = path.join(folder, String(index));
    writeFileSync(source, `contents of ${name}`, { mode: 0o600 + index });
    utimesSync(source, builtAt, builtAt);
    return { path: name, type: "file", mode: 0o644, source };
  });
}

test("what is packed in another folder, at another time, in another order, is the same, byte for byte", async () => {
  const packed: Buffer[] = [];
  for (const [folder, builtAt] of [
    ["one", new Date(1)],
    ["two", new Date(2_000_000_000)],
  ] as const) {
    const entries = built(path.join(home, folder), builtAt);
    if (folder === "two") entries.reverse();
    const file = path.join(home, `${folder}.out`);
    await compress(withFolders(entries), file, mtime);
    packed.push(readFileSync(file));
    const debian = { file, root: projectRoot, version: "0.0.1", arch: "x64", mtime };
    await writeDebianPackage({ ...debian, entries: debianEntries(projectRoot, entries) });
    packed.push(readFileSync(file));
  }
  expect(packed).toHaveLength(4);
  expect(packed[0]?.equals(packed[2] ?? Buffer.alloc(0))).toBe(true);
  expect(packed[1]?.equals(packed[3] ?? Buffer.alloc(0))).toBe(true);
});

test.skipIf(findProgram("dpkg-deb") === undefined)(
  "Debian's own tool reads the package: everything root's, the configuration the administrator's",
  async () => {
    const file = path.join(home, "alcove.deb");
    const entries = debianEntries(projectRoot, built(path.join(home, "build"), mtime));
    await writeDebianPackage({ file, root: projectRoot, version: "0.0.1", arch: "arm64", mtime, entries });
    const ask = (...args: string[]) => {
      const { stdout, stderr, status } = spawnSync("dpkg-deb", args, { encoding: "utf8", cwd: home });
      expect(status, stderr).toBe(0);
      return stdout;
    };
    expect(ask("--field", file, "Package", "Version", "Architecture")).toBe(
      "Package: alcove\nVersion: 0.0.1\nArchitecture: arm64\n",
    );
    const listed = ask("--contents", file).trim().split("\n");
    expect(listed.filter((line) => !line.includes(" 0/0 "))).toEqual([]);
    expect(listed.some((line) => line.endsWith(`./opt/alcove/${long}`))).toBe(true);
    expect(listed.filter((line) => / \.\/opt\/(?:alcove\/)?$/.test(line))).toEqual([
      expect.stringMatching(/ \.\/opt\/alcove\/$/),
    ]);
    ask("--control", file, "control");
    expect(readFileSync(path.join(home, "control/conffiles"), "utf8")).toBe("/etc/alcove/alcove.yaml\n");
    expect(readFileSync(path.join(home, "control/md5sums"), "utf8")).not.toContain("etc/alcove");
  },
);

test("a package holds what runs, without tests and tools, each package in the version that is locked", () => {
  const node = process.execPath;
  const paths = contentsOf(projectRoot, { node, serviceNodeFlags: [] }).map((entry) => entry.path);
  for (const wanted of ["bin/alcove", "node/bin/node", "agent/dist/alcove-agent", "deploy/alcove.service"])
    expect(paths).toContain(wanted);
  expect(paths).toContain("packages/server/src/main.ts");
  expect(paths).toContain("node_modules/fastify/package.json");
  const forDevelopers =
    /^packages\/.*(?:\.test\.ts$|\/testing\/|\/contract\/)|^node_modules\/(?:vitest|typescript)\//;
  expect(paths.filter((name) => forDevelopers.test(name))).toEqual([]);
  expect(new Set(paths).size).toBe(paths.length);
  expect(productionPackages(projectRoot).map(({ name }) => name)).not.toContain("vitest");
});

test("a package holds every file below deploy that its documentation names", async () => {
  const contents = contentsOf(projectRoot, { node: process.execPath, serviceNodeFlags: [] });
  const paths = new Set(contents.map((entry) => entry.path));
  const pages = contents.filter((entry) => /^docs\/.*\.md$/.test(entry.path) && "source" in entry);
  const named = new Set(
    pages.flatMap((page) =>
      [...readFileSync(path.join(projectRoot, page.path), "utf8").matchAll(/deploy\/[\w./-]*\w/g)].map(
        ([name]) => name,
      ),
    ),
  );
  expect(named.size).toBeGreaterThan(7);
  expect([...named].filter((name) => !paths.has(name))).toEqual([]);
  expect([...paths].filter((name) => /^deploy\/(?:debian|package)\//.test(name))).toEqual([]);
});

test("an installation that is not complete starts nothing and names the way out", () => {
  mkdirSync(path.join(home, "bin"));
  const command = path.join(home, "bin", "alcove");
  copyFileSync(path.join(projectRoot, "deploy/package/alcove"), command);
  chmodSync(command, 0o755);
  mkdirSync(path.join(home, "node/bin"), { recursive: true });
  writeFileSync(path.join(home, "node/bin/node"), '#!/bin/sh\necho "started $*"\n', { mode: 0o755 });
  const half = spawnSync(command, ["ls"], { encoding: "utf8" });
  expect(half.status).toBe(125);
  expect(half.stderr).toContain(`the installation in ${home} is unfinished`);
  expect(half.stderr).toContain("dpkg --configure -a");
  expect(half.stdout).toBe("");
  writeFileSync(path.join(home, ".complete"), "");
  const whole = spawnSync(command, ["ls"], { encoding: "utf8" });
  expect(whole.stdout).toBe(`started ${home}/packages/cli/src/bin.cjs ls\n`);
});
