// The bundle of the client commands, made anew when their sources have changed. Plain JavaScript, Node 18 and up.
import { spawnSync } from "node:child_process";
import { accessSync, constants } from "node:fs";
import path from "node:path";
import bundle from "../../packages/cli/src/bundle.cjs";
import { say } from "./step.mjs";

/** Half a second; where it cannot be had, the commands run from their sources, at half the speed. */
export function ensureCommandBundle(root, node) {
  if (bundle.currentBundle(root) !== undefined || !mayWrite(path.join(root, "packages/cli"))) return;
  const made = spawnSync(node, [path.join(root, "scripts/bundle-command.mjs")], { encoding: "utf8" });
  if (made.status === 0) return;
  const why = made.error?.message ?? /^\w*Error: (.+)$/m.exec(made.stderr)?.[1] ?? `exit code ${made.status}`;
  say(
    `client commands start from their sources, which takes longer: no bundle of them could be made: ${why}`,
  );
}

function mayWrite(folder) {
  try {
    accessSync(folder, constants.W_OK);
    return true;
  } catch {
    return false;
  }
}
