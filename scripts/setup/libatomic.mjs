// Node's binary needs libatomic, which a bare Debian does not have. Root installs the package; anybody else unpacks it
// into the clone, which needs no rights. Plain JavaScript, Node 18 and up.
import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { findProgram, runStep, say } from "./step.mjs";

/** @returns whether libatomic is there now; otherwise the command that helps has been printed. */
export async function ensureLibatomic(libraryDir) {
  const apt = findProgram("apt-get");
  const root = process.getuid?.() === 0;
  if (apt !== undefined && root) {
    say("libatomic is missing, which Node needs; installing it with apt-get, as root");
    const env = { DEBIAN_FRONTEND: "noninteractive" };
    if (
      (await runStep("reading package lists (apt-get update)", apt, ["update"], { env })) &&
      (await runStep(
        "installing libatomic1 (apt-get)",
        apt,
        ["install", "-y", "--no-install-recommends", "libatomic1"],
        { env },
      ))
    ) {
      return true;
    }
  } else if (apt !== undefined && (await unpackIntoClone(apt, libraryDir))) {
    return true;
  }
  say(`libatomic is missing, which Node needs. Install it and start again:  ${command(apt, root)}`);
  return false;
}

/** Apt works without rights on lists and a cache of its own. */
async function unpackIntoClone(apt, libraryDir) {
  const work = mkdtempSync(path.join(tmpdir(), "alcove-apt-"));
  try {
    for (const folder of ["lists/partial", "cache/archives/partial", "root"]) {
      mkdirSync(path.join(work, folder), { recursive: true });
    }
    const own = [
      "-o",
      `Dir::State::lists=${work}/lists`,
      "-o",
      `Dir::Cache=${work}/cache`,
      "-o",
      "Debug::NoLocking=true",
      "-o",
      "APT::Sandbox::User=",
    ];
    if (
      !(await runStep("reading package lists (apt-get, into a folder of our own)", apt, [...own, "update"]))
    )
      return false;
    const download = [...own, "download", "libatomic1"];
    if (!(await runStep("fetching libatomic1, which Node needs", apt, download, { cwd: work }))) return false;
    const archive = readdirSync(work).find((name) => name.endsWith(".deb"));
    if (archive === undefined) return false;
    const unpacked = spawnSync("dpkg-deb", ["-x", path.join(work, archive), path.join(work, "root")], {
      stdio: "inherit",
    });
    const library = unpacked.status === 0 ? findLibrary(path.join(work, "root")) : undefined;
    if (library === undefined) return false;
    mkdirSync(libraryDir, { recursive: true });
    // The name programs ask for is a link to the file with the whole version.
    cpSync(library, path.join(libraryDir, "libatomic.so.1"), { dereference: true });
    return true;
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

function findLibrary(folder) {
  for (const entry of readdirSync(folder, { withFileTypes: true })) {
    const file = path.join(folder, entry.name);
    if (entry.isDirectory()) {
      const found = findLibrary(file);
      if (found !== undefined) return found;
    } else if (entry.name === "libatomic.so.1" && existsSync(file)) {
      return file;
    }
  }
  return undefined;
}

function command(apt, root) {
  const sudo = root ? "" : "sudo ";
  if (apt !== undefined) return `${sudo}apt-get update && ${sudo}apt-get install -y libatomic1`;
  if (findProgram("dnf") !== undefined) return `${sudo}dnf install -y libatomic`;
  if (findProgram("zypper") !== undefined) return `${sudo}zypper install -y libatomic1`;
  if (findProgram("apk") !== undefined) return `${sudo}apk add libatomic`;
  return `${sudo}pacman -S --needed gcc-libs`;
}
