// Builds the two programs that sandboxes run on, alcove-agent and alcove-launch, into agent/dist.
// Plain JavaScript for any Node from 18 up. Does nothing when agent/dist was built from the sources as they are.

import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  writeFileSync,
} from "node:fs";
import { homedir } from "node:os";
import { dirname, join, relative } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const agentFolder = join(dirname(dirname(fileURLToPath(import.meta.url))), "agent");
const distFolder = join(agentFolder, "dist");
const stampFile = join(distFolder, ".stamp");

/** The programs that are built. */
export const agentBinaries = ["alcove-agent", "alcove-launch"];
/** The oldest Rust that builds them, as the workspace's rust-version says. */
export const oldestRust = "1.85.0";
/** What brings a Rust that is new enough on Debian 12, whose plain `cargo` is too old. */
export const debianPackages = ["cargo-web", "rustc-web", "libc6-dev", "gcc"];

/** No cargo that is new enough; `installCommand` says what helps. */
export class CargoMissing extends Error {
  constructor(found) {
    const reason = found.length === 0 ? "cargo is not installed" : `cargo is too old: ${found.join(", ")}`;
    super(`${reason}; Rust ${oldestRust} or newer is needed to build the agent`);
    this.name = "CargoMissing";
    this.installCommand = `apt-get install -y --no-install-recommends ${debianPackages.join(" ")}`;
    this.packages = debianPackages;
  }
}

/** The compiler ran and failed; its output has been passed on. */
export class BuildFailed extends Error {
  constructor(message) {
    super(message);
    this.name = "BuildFailed";
  }
}

/** Source files of the workspace, without what is built and without tests. */
function sourceFiles(folder) {
  const files = [];
  for (const entry of readdirSync(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) {
      if (!["target", "dist", "tests", "fixtures", "fuzz"].includes(entry.name))
        files.push(...sourceFiles(path));
    } else if (/\.(rs|toml|lock)$/.test(entry.name)) {
      files.push(path);
    }
  }
  return files.sort();
}

function sourceStamp() {
  const hash = createHash("sha256").update(process.arch);
  for (const file of sourceFiles(agentFolder)) {
    hash.update(`\0${relative(agentFolder, file)}\0`).update(readFileSync(file));
  }
  return hash.digest("hex");
}

function atLeast(version, wanted) {
  const [have, want] = [version, wanted].map((text) =>
    text.split(".").map((part) => Number.parseInt(part, 10)),
  );
  for (let index = 0; index < 3; index++) {
    if (have[index] !== want[index]) return have[index] > want[index];
  }
  return true;
}

function versionOf(program) {
  const result = spawnSync(program, ["--version"], { encoding: "utf8", timeout: 20_000 });
  return /\b(\d+\.\d+\.\d+)/.exec(result.stdout ?? "")?.[1];
}

/** The first cargo whose compiler is new enough: the path's, rustup's, then Debian's versioned ones. */
export function findCargo() {
  const folders = [
    undefined,
    join(homedir(), ".cargo", "bin"),
    "/usr/lib/rust-web/bin",
    "/usr/local/cargo/bin",
    "/usr/bin",
  ];
  const found = [];
  for (const folder of folders) {
    const cargo = folder === undefined ? "cargo" : join(folder, "cargo");
    const version = versionOf(cargo);
    if (version === undefined) continue;
    if (atLeast(version, oldestRust)) return { cargo, folder, version };
    if (!found.includes(`${cargo} ${version}`)) found.push(`${cargo} ${version}`);
  }
  throw new CargoMissing(found);
}

const targets = { x64: "x86_64-unknown-linux-gnu", arm64: "aarch64-unknown-linux-gnu" };

/** @returns whether both programs are there and fit the sources; needs no cargo. */
export function agentIsCurrent() {
  const complete = agentBinaries.every((name) => existsSync(join(distFolder, name)));
  return complete && existsSync(stampFile) && readFileSync(stampFile, "utf8") === sourceStamp();
}

/**
 * Builds both programs unless they are there and fit the sources.
 * @param {{ log?: (line: string) => void, force?: boolean }} options
 * @returns {Promise<{ built: boolean, folder: string, binaries: Record<string, string> }>}
 * @throws CargoMissing, BuildFailed
 */
export async function buildAgent({ log = () => undefined, force = false } = {}) {
  const stamp = sourceStamp();
  const binaries = Object.fromEntries(agentBinaries.map((name) => [name, join(distFolder, name)]));
  const result = (built) => ({ built, folder: distFolder, binaries });
  if (!force && agentIsCurrent()) return result(false);

  if (process.platform !== "linux")
    throw new BuildFailed(`the agent is a Linux program and cannot be built on ${process.platform}`);
  const target = targets[process.arch];
  if (target === undefined)
    throw new BuildFailed(`the agent is built for x64 and arm64, not for ${process.arch}`);
  const { cargo, folder, version } = findCargo();
  log(`building the agent with cargo ${version}; this takes one to four minutes, once`);
  const crates = agentBinaries.flatMap((name) => ["-p", name]);
  const environment = { ...process.env };
  if (folder !== undefined) environment.PATH = `${folder}:${environment.PATH ?? ""}`;
  // Flags from outside would replace those of the workspace, and the programs would not be static.
  delete environment.RUSTFLAGS;
  delete environment.CARGO_ENCODED_RUSTFLAGS;
  delete environment.CARGO_TARGET_DIR;
  const args = ["build", "--release", "--locked", "--target", target, ...crates];
  await run(cargo, args, { cwd: agentFolder, env: environment, log });

  mkdirSync(distFolder, { recursive: true });
  for (const [name, path] of Object.entries(binaries)) {
    // By rename: a running copy keeps its file.
    const fresh = `${path}.${process.pid}.new`;
    copyFileSync(join(agentFolder, "target", target, "release", name), fresh);
    chmodSync(fresh, 0o755);
    renameSync(fresh, path);
  }
  writeFileSync(stampFile, stamp);
  return result(true);
}

function run(program, args, { cwd, env, log }) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd, env, stdio: ["ignore", "pipe", "pipe"] });
    let tail = "";
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8");
      stream.on("data", (text) => {
        tail = (tail + text).slice(-8192);
        for (const line of text.split("\n")) if (line.trim() !== "") log(line.trimEnd());
      });
    }
    child.once("error", (error) => reject(new BuildFailed(`${program}: ${error.message}`)));
    child.once("close", (code, signal) => {
      if (code === 0) resolve();
      else reject(new BuildFailed(`cargo ended with ${signal ?? code}:\n${tail}`));
    });
  });
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) {
  try {
    const { built, folder } = await buildAgent({
      log: (line) => console.error(line),
      force: process.argv.includes("--force"),
    });
    console.log(built ? `built into ${folder}` : `up to date in ${folder}`);
  } catch (error) {
    console.error(
      error instanceof CargoMissing ? `${error.message}\n  ${error.installCommand}` : error.message,
    );
    process.exitCode = 1;
  }
}
