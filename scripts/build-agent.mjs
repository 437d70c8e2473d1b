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
import { addTarget, hasTarget } from "./rust-target.mjs";

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

const machines = { x64: "x86_64", arm64: "aarch64" };

/** The C library that both programs in agent/dist hold: `musl` or `gnu`. */
export function agentLibrary() {
  return stampFields()[1];
}

/** Why that is not musl; empty where it is. */
export function whyNotMusl() {
  return stampFields().slice(2).join(" ");
}

/** The target that both programs in agent/dist are built for, which their tests are run for too. */
export function agentTarget() {
  return targetOf(agentLibrary());
}

function stampFields() {
  return readFileSync(stampFile, "utf8").trim().split(" ");
}

/** @returns whether a program needs no other to be started: an ELF file of 64 bits without an interpreter. */
function isStatic(file) {
  const bytes = readFileSync(file);
  const interpreter = 3;
  const [from, size, count] = [
    Number(bytes.readBigUInt64LE(32)),
    bytes.readUInt16LE(54),
    bytes.readUInt16LE(56),
  ];
  return !Array.from({ length: count }, (_, index) => bytes.readUInt32LE(from + index * size)).includes(
    interpreter,
  );
}

function targetOf(library) {
  return `${machines[process.arch]}-unknown-linux-${library}`;
}

/** @returns whether both programs are there and fit the sources; needs no cargo. */
export function agentIsCurrent() {
  const complete = agentBinaries.every((name) => existsSync(join(distFolder, name)));
  return (
    complete && existsSync(stampFile) && stampFields()[0] === sourceStamp() && agentLibrary() !== undefined
  );
}

/** How a reason begins for which there is no musl though there is a target. */
const buildFailed = "it could not be built for musl: ";

/** Whether the programs hold glibc because the compiler had no other target, and it has one by now. */
function mayBeMuslNow() {
  const hadNone = agentLibrary() !== "musl" && !whyNotMusl().startsWith(buildFailed);
  if (!hadNone || machines[process.arch] === undefined) return false;
  try {
    const { folder } = findCargo();
    return hasTarget(targetOf("musl"), { folder, env: process.env, cwd: agentFolder });
  } catch (error) {
    if (error instanceof CargoMissing) return false;
    throw error;
  }
}

/**
 * Builds both programs unless they are there and fit the sources, and, where they hold glibc, the compiler still has no target for musl.
 * @param {{ log?: (line: string) => void, force?: boolean }} options
 * @returns {Promise<{ built: boolean, folder: string, binaries: Record<string, string> }>}
 * @throws CargoMissing, BuildFailed
 */
export async function buildAgent({ log = () => undefined, force = false } = {}) {
  const stamp = sourceStamp();
  const binaries = Object.fromEntries(agentBinaries.map((name) => [name, join(distFolder, name)]));
  const result = (built) => ({ built, folder: distFolder, binaries });
  if (!force && agentIsCurrent() && !mayBeMuslNow()) return result(false);

  if (process.platform !== "linux")
    throw new BuildFailed(`the agent is a Linux program and cannot be built on ${process.platform}`);
  if (machines[process.arch] === undefined)
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
  const build = async (library) => {
    const target = targetOf(library);
    const args = ["build", "--release", "--locked", "--target", target, ...crates];
    await run(cargo, args, { cwd: agentFolder, env: environment, log });
    const made = Object.fromEntries(
      agentBinaries.map((name) => [name, join(agentFolder, "target", target, "release", name)]),
    );
    const dynamic = agentBinaries.filter((name) => !isStatic(made[name]));
    if (dynamic.length > 0)
      throw new BuildFailed(
        `${dynamic.join(" and ")} came out dynamic, for ${target}: a setting of cargo's outside of the project says so`,
      );
    return made;
  };
  // A program of musl starts in 0.25 ms less than one of glibc, whose first steps ask the processor what it is some sixty times, each an exit to
  // the hypervisor where the machine is a virtual one. Each sandbox starts one.
  const tried = async () => {
    const why = await addTarget(targetOf("musl"), { folder, env: environment, cwd: agentFolder, log });
    if (why !== undefined) return { why };
    try {
      return { forMusl: await build("musl") };
    } catch (error) {
      if (!(error instanceof BuildFailed)) throw error;
      log(error.message);
      const lines = error.message.split("\n");
      return { why: `${buildFailed}${lines.find((line) => line.startsWith("error")) ?? lines[0]}` };
    }
  };
  const { forMusl, why } = await tried();
  if (why !== undefined) log(`the programs get glibc instead of musl: ${why}`);
  const made = forMusl ?? (await build("gnu"));

  mkdirSync(distFolder, { recursive: true });
  for (const [name, path] of Object.entries(binaries)) {
    // By rename: a running copy keeps its file.
    const fresh = `${path}.${process.pid}.new`;
    copyFileSync(made[name], fresh);
    chmodSync(fresh, 0o755);
    renameSync(fresh, path);
  }
  writeFileSync(stampFile, [stamp, ...(why === undefined ? ["musl"] : ["gnu", why])].join(" "));
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
