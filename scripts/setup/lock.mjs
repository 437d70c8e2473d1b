// Two set-ups of one clone at once would tear up each other's node_modules. Plain JavaScript, Node 18 and up.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { say } from "./step.mjs";

const pollMs = 250;

/**
 * Runs `work` while no other process sets up the same clone. A lock whose owner died is taken over.
 * @throws Error when the lock cannot be had, or not within `longestWaitMs`.
 */
export async function withSetupLock(root, work, { longestWaitMs = 15 * 60_000 } = {}) {
  const lock = path.join(root, ".runtime", "setup.lock");
  mkdirSync(path.dirname(lock), { recursive: true });
  const deadline = Date.now() + longestWaitMs;
  for (let told = false; !take(lock); told = true) {
    if (!told) say("another set-up of this clone is under way; waiting for it");
    if (Date.now() > deadline)
      throw new Error(
        `still locked after ${longestWaitMs / 1_000} s: remove ${lock} if no set-up is running`,
      );
    await new Promise((resolve) => setTimeout(resolve, pollMs));
  }
  const release = () => rmSync(lock, { force: true });
  process.once("exit", release);
  try {
    return await work();
  } finally {
    release();
    process.removeListener("exit", release);
  }
}

function take(lock) {
  try {
    writeFileSync(lock, String(process.pid), { flag: "wx" });
    return true;
  } catch (error) {
    if (error.code !== "EEXIST") throw error;
  }
  const owner = Number(readOwner(lock));
  if (owner > 0 && isAlive(owner)) return false;
  rmSync(lock, { force: true });
  return false;
}

function readOwner(lock) {
  try {
    return readFileSync(lock, "utf8");
  } catch {
    return "";
  }
}

export function isAlive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === "EPERM";
  }
}
