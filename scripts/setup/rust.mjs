// Finds a cargo that can build the agent, or gets one where that is in our hands: as root, from the distribution.
// Plain JavaScript, Node 18 and up.
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import path from "node:path";
import { CargoMissing, findCargo as cargoForAgent, oldestRust } from "../build-agent.mjs";
import { findProgram, runStep, say } from "./step.mjs";

/** Cargo's packages, the one with the newest compiler first: Debian 12's plain `cargo` is years old. */
const aptPackages = ["cargo-web", "cargo"];
/** To link a static program. */
const aptLinker = ["gcc", "libc6-dev"];

/**
 * @returns `{ cargo, env }` to build with, or `{ missing }`: why not, and the exact command that changes it.
 */
export async function ensureCargo() {
  const wanted = oldestRust;
  const found = findCargo();
  const linker = findProgram("cc") ?? findProgram("gcc");
  if (found !== undefined && linker !== undefined) return usable(found);
  const lacking = [
    ...(found === undefined ? [`cargo ${wanted} or newer`] : []),
    ...(linker === undefined ? ["a C linker (cc)"] : []),
  ].join(" and ");
  const apt = findProgram("apt-get");
  if (apt !== undefined && process.getuid?.() === 0) {
    say(`${lacking} is missing, which the agent is built with; installing it with apt-get, as root`);
    if (await installWithApt(apt, wanted, { cargo: found === undefined })) {
      const installed = findCargo();
      if (installed !== undefined) return usable(installed);
    }
  }
  return {
    missing: `${lacking} is missing, which the agent is built with`,
    command: installCommand(apt, wanted, found),
  };
}

async function installWithApt(apt, wanted, need) {
  const env = { DEBIAN_FRONTEND: "noninteractive", LC_ALL: "C.UTF-8" };
  if (!(await runStep("reading package lists (apt-get update)", apt, ["update"], { env }))) return false;
  const cargo = need.cargo ? aptCargo(wanted) : undefined;
  if (need.cargo && cargo === undefined) {
    say(`no package of this distribution has cargo ${wanted} or newer`);
    return false;
  }
  const packages = [...(cargo === undefined ? [] : [cargo]), ...aptLinker];
  const args = ["install", "-y", "--no-install-recommends", ...packages];
  return runStep(`installing ${packages.join(", ")} (apt-get)`, apt, args, { env });
}

/** @returns the first package whose candidate is new enough. */
function aptCargo(wanted) {
  return aptPackages.find((name) => {
    const policy = spawnSync("apt-cache", ["policy", name], {
      encoding: "utf8",
      env: { ...process.env, LC_ALL: "C" },
    });
    const candidate = /Candidate: (?:\d+:)?(\d+\.\d+(?:\.\d+)?)/.exec(policy.stdout ?? "");
    return candidate !== null && atLeast(candidate[1], wanted);
  });
}

function installCommand(apt, wanted, found) {
  const sudo = process.getuid?.() === 0 ? "" : "sudo ";
  const rustup = "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y";
  if (apt !== undefined) {
    const cargo = found === undefined ? [aptCargo(wanted) ?? (isDebian12() ? "cargo-web" : "cargo")] : [];
    return `${sudo}apt-get update && ${sudo}apt-get install -y ${[...cargo, ...aptLinker].join(" ")}`;
  }
  if (findProgram("dnf") !== undefined) return `${sudo}dnf install -y cargo gcc glibc-static`;
  if (findProgram("zypper") !== undefined) return `${sudo}zypper install -y cargo gcc glibc-devel-static`;
  if (findProgram("pacman") !== undefined) return `${sudo}pacman -S --needed rust gcc`;
  if (findProgram("apk") !== undefined) return `${sudo}apk add cargo gcc musl-dev`;
  return rustup;
}

function isDebian12() {
  try {
    const release = readFileSync("/etc/os-release", "utf8");
    return /^ID=debian$/m.test(release) && /^VERSION_ID="12"$/m.test(release);
  } catch {
    return false;
  }
}

function findCargo() {
  try {
    return cargoForAgent();
  } catch (error) {
    if (error instanceof CargoMissing) return undefined;
    throw error;
  }
}

function usable({ cargo, folder }) {
  const env = folder === undefined ? {} : { PATH: `${folder}${path.delimiter}${process.env.PATH ?? ""}` };
  return { cargo, env };
}

function atLeast(version, wanted) {
  const have = version.split(".").map(Number);
  const want = wanted.split(".").map(Number);
  for (let index = 0; index < 3; index++) {
    const difference = (have[index] ?? 0) - (want[index] ?? 0);
    if (difference !== 0) return difference > 0;
  }
  return true;
}
