// What targets the compiler has, and how it gets one. Plain JavaScript for any Node from 18 up.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";

/** How long rustup may be silent about a target, and how long it may take when that begins to be there. */
const fetchMs = 60_000;
const unpackMs = 300_000;
const questionMs = 10_000;
/** What a process said is there so soon after its end; whoever it started may hold its output for longer. */
const lastWordsMs = 500;

/**
 * @typedef {object} Toolchain
 * @property {string} [folder] of rustc and rustup; undefined: those of the PATH
 * @property {NodeJS.ProcessEnv} env
 * @property {string} cwd which may have a toolchain of its own
 */

/** @param {Toolchain} toolchain */
export function hasTarget(target, toolchain) {
  const libraries = librariesOf(target, toolchain);
  // The last of them that a program needs; an unpacking that was ended leaves some.
  return existsSync(libraries) && readdirSync(libraries).some((name) => /^libstd-.*\.rlib$/.test(name));
}

/**
 * Asks rustup for a target that the compiler has not got. That of a distribution may know no rustup.
 * @param {Toolchain & { log: (line: string) => void }} toolchain
 * @returns {Promise<string | undefined>} why there is no such target; undefined: there is.
 */
export async function addTarget(target, { log, ...toolchain }) {
  if (hasTarget(target, toolchain)) return undefined;
  const libraries = librariesOf(target, toolchain);
  if (libraries === "") return "the compiler does not say where its libraries are";
  log(`the compiler has no target ${target}; asking rustup, which has ${fetchMs / 1_000} s to fetch it`);
  const failure = await addedByRustup(target, toolchain, dirname(libraries));
  if (failure !== undefined) return failure;
  return hasTarget(target, toolchain) ? undefined : "rustup has it for another toolchain";
}

/** The folder of a target's libraries, there or not; empty where the compiler does not say. */
function librariesOf(target, { folder, env, cwd }) {
  const { stdout } = spawnSync(inFolder(folder, "rustc"), ["--print", "target-libdir", "--target", target], {
    ...{ encoding: "utf8", env, cwd, timeout: questionMs, killSignal: "SIGKILL" },
  });
  return (stdout ?? "").trim();
}

/**
 * @param place where rustup puts the target once it has it. From then on it is not ended: what is half there it would neither finish nor remove.
 * @returns why it could not.
 */
async function addedByRustup(target, { folder, env, cwd }, place) {
  // Left there by one that was ended, perhaps: it says nothing of this one.
  const wasThere = existsSync(place);
  const startedMs = Date.now();
  const child = spawn(inFolder(folder, "rustup"), ["target", "add", target], {
    ...{ env: { ...env, RUST_BACKTRACE: "0" }, cwd, stdio: ["ignore", "ignore", "pipe"] },
  });
  let tooLate = false;
  const watch = setInterval(() => {
    tooLate = Date.now() - startedMs > (!wasThere && existsSync(place) ? unpackMs : fetchMs);
    // A wrapper may not heed less.
    if (tooLate) child.kill("SIGKILL");
  }, 200);
  let told = "";
  child.stderr.setEncoding("utf8").on("data", (text) => {
    told = (told + text).slice(-65_536);
  });
  const { error, code } = await new Promise((resolve) => {
    child.once("error", (error) => resolve({ error }));
    child.once("exit", (code) => {
      const end = () => resolve({ code });
      child.once("close", end);
      setTimeout(end, lastWordsMs).unref();
    });
  });
  clearInterval(watch);
  child.stderr.destroy();
  if (error !== undefined) return error.code === "ENOENT" ? "rustup is not installed" : error.message;
  if (code === 0) return undefined;
  if (tooLate) return `rustup had not added it after ${Math.round((Date.now() - startedMs) / 1_000)} s`;
  const lines = told.split("\n").filter((line) => line.trim() !== "");
  return `rustup: ${lines.find((line) => line.startsWith("error:")) ?? lines.at(-1) ?? "it failed"}`;
}

function inFolder(folder, program) {
  return folder === undefined ? program : join(folder, program);
}
