// Finds a Node the service can run on: the one that runs this script when it is new enough, otherwise the binary
// of the npm package `node-<platform>-<arch>`, kept in .runtime/. Plain JavaScript for any Node from 18 up.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const wantedMajor = 26;
export const projectRoot = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");

/** @returns the path of a Node binary of at least `wantedMajor`; installs one when the machine has none. */
export function nodeRuntime() {
  if (Number(process.versions.node.split(".")[0]) >= wantedMajor) return process.execPath;
  const runtimeDir = path.join(projectRoot, ".runtime");
  const name = `node-${process.platform}-${process.arch}`;
  const binary = path.join(runtimeDir, "node_modules", name, "bin", "node");
  if (existsSync(binary)) return binary;
  console.error(
    `alcove: this Node is ${process.versions.node}; fetching Node ${wantedMajor} (npm package ${name}) …`,
  );
  mkdirSync(runtimeDir, { recursive: true });
  writeFileSync(path.join(runtimeDir, "package.json"), '{"private":true}\n');
  const npm = spawnSync(
    "npm",
    [
      "install",
      "--prefix",
      runtimeDir,
      "--no-audit",
      "--no-fund",
      "--ignore-scripts",
      `${name}@${wantedMajor}`,
    ],
    {
      stdio: ["ignore", "ignore", "inherit"],
    },
  );
  if (npm.status !== 0 || !existsSync(binary)) {
    console.error(
      `alcove: could not install ${name}@${wantedMajor} from the npm registry; install Node ${wantedMajor} or newer yourself and try again.`,
    );
    process.exit(1);
  }
  return binary;
}
