// The bundles that commands start from, made anew when their sources have changed. Plain JavaScript, Node 18 and up.
import { spawnSync } from "node:child_process";
import { accessSync, constants } from "node:fs";
import path from "node:path";
import bundle from "../../packages/cli/src/bundle.cjs";
import { withSetupLock } from "./lock.mjs";
import { say } from "./step.mjs";

/** What a bundle that cannot be had costs. */
const without = {
  client: "client commands start from their sources, which takes longer",
  service: "the service starts from its sources, which takes longer and 20 MB more memory",
};

/** Another's takes three seconds; a set-up that compiles holds nobody up who can do without what it makes. */
const longestWaitMs = 30_000;
/** A bundler that hangs is one that there is none of. */
const longestMakingMs = 60_000;

/** Half a second for the client's, one to three for the service's; where it cannot be had, the commands run from their sources. */
export async function ensureBundle(root, node, kind, options = {}) {
  if (bundle.currentBundle(root, kind) !== undefined || !mayWrite(path.join(root, "packages/cli"))) return;
  try {
    const { makingMs = longestMakingMs, waitMs = longestWaitMs } = options;
    await withSetupLock(root, () => make(root, node, kind, makingMs), { longestWaitMs: waitMs });
  } catch (error) {
    // The lock's: no disk left, `.runtime` is another user's, a set-up takes long.
    tell(kind, error.message);
  }
}

function make(root, node, kind, makingMs) {
  // Made by somebody else meanwhile.
  if (bundle.currentBundle(root, kind) !== undefined) return;
  const args = [path.join(root, "scripts/bundle.mjs"), kind];
  const made = spawnSync(node, args, { encoding: "utf8", timeout: makingMs, killSignal: "SIGKILL" });
  if (made.status === 0) return;
  tell(kind, whyNotMade(made));
}

function whyNotMade({ error, signal, status, stderr }) {
  if (error?.code === "ETIMEDOUT") return "it took too long";
  if (error) return error.message;
  if (signal) return `ended by ${signal}`;
  // What the bundler says first is only that it failed.
  const said = /^Caused by:\n\s+(.+)$/m.exec(stderr) ?? /^\w*Error: (.+)$/m.exec(stderr);
  return said?.[1] ?? `exit code ${status}`;
}

function tell(kind, why) {
  say(`${without[kind]}: no bundle of them could be made: ${why}`);
}

function mayWrite(folder) {
  try {
    accessSync(folder, constants.W_OK);
    return true;
  } catch {
    return false;
  }
}
