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

/** Half a second for the client's, one to three for the service's; where it cannot be had, the commands run from their sources. */
export async function ensureBundle(root, node, kind, options = { longestWaitMs }) {
  if (bundle.currentBundle(root, kind) !== undefined || !mayWrite(path.join(root, "packages/cli"))) return;
  try {
    await withSetupLock(root, () => make(root, node, kind), options);
  } catch (error) {
    // The lock's: no disk left, `.runtime` is another user's, a set-up takes long.
    tell(kind, error.message);
  }
}

function make(root, node, kind) {
  // Made by somebody else meanwhile.
  if (bundle.currentBundle(root, kind) !== undefined) return;
  const args = [path.join(root, "scripts/bundle.mjs"), kind];
  const made = spawnSync(node, args, { encoding: "utf8" });
  if (made.status === 0) return;
  tell(kind, whyNotMade(made));
}

function whyNotMade({ error, signal, status, stderr }) {
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
