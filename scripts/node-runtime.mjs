// Finds a Node the service can run on: the one that runs this script when it is new enough, otherwise the binary
// of the npm package `node-<platform>-<arch>`, kept in .runtime/. Plain JavaScript for any Node from 18 up.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const wantedMajor = 26;
export const projectRoot = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");

const runtimeDir = path.join(projectRoot, ".runtime");
const packageName = `node-${process.platform}-${process.arch}`;
const binary = path.join(runtimeDir, "node_modules", packageName, "bin", "node");

/** Says that the binary runs here; `bin/alcove` looks for it too. */
const checkedMark = path.join(runtimeDir, "node.ok");
/** Libraries the binary needs and the system lacks. */
export const libraryDir = path.join(runtimeDir, "lib");

/** @returns the path of a Node binary of at least `wantedMajor` that is already here and runs, or undefined. */
export function findNode() {
  if (Number(process.versions.node.split(".")[0]) >= wantedMajor) return process.execPath;
  if (!existsSync(binary)) return undefined;
  if (existsSync(libraryDir) && !(process.env.LD_LIBRARY_PATH ?? "").includes(libraryDir)) {
    process.env.LD_LIBRARY_PATH = [libraryDir, process.env.LD_LIBRARY_PATH].filter(Boolean).join(":");
  }
  if (existsSync(checkedMark)) return binary;
  if (nodeFailure() !== undefined) return undefined;
  writeFileSync(checkedMark, "");
  return binary;
}

/** @returns what the binary said when it did not run: a library it lacks, as a rule. */
export function nodeFailure() {
  if (!existsSync(binary)) return "it is not installed";
  const result = spawnSync(binary, ["--version"], { encoding: "utf8" });
  return result.status === 0
    ? undefined
    : (result.stderr ?? "").trim() || String(result.error ?? "it does not run");
}

/** Makes the folder ready. @returns the npm command that puts the binary into it. */
export function nodeInstallation() {
  mkdirSync(runtimeDir, { recursive: true });
  writeFileSync(path.join(runtimeDir, "package.json"), '{"private":true}\n');
  const flags = ["--no-audit", "--no-fund", "--ignore-scripts"];
  return {
    title: `fetching Node ${wantedMajor} (npm package ${packageName}), this one is ${process.versions.node}`,
    command: "npm",
    args: ["install", "--prefix", runtimeDir, ...flags, `${packageName}@${wantedMajor}`],
    failed: `could not install ${packageName}@${wantedMajor} from the npm registry; install Node ${wantedMajor} or newer yourself and try again`,
  };
}

/** @returns the path of a Node binary of at least `wantedMajor`; installs one when the machine has none. */
export function nodeRuntime() {
  const found = findNode();
  if (found !== undefined) return found;
  const { title, command, args, failed } = nodeInstallation();
  console.error(`alcove: ${title} …`);
  const npm = spawnSync(command, args, { stdio: ["ignore", "ignore", "inherit"] });
  const installed = npm.status === 0 ? findNode() : undefined;
  if (installed === undefined) {
    console.error(`alcove: ${failed}.`);
    process.exit(1);
  }
  return installed;
}

/** What Node is started with for the service: a smaller young generation keeps its memory below 150 MB. docs/performance.md */
export function serviceNodeFlags() {
  return JSON.parse(readFileSync(new URL("./setup/service-node-flags.json", import.meta.url), "utf8"));
}
