// What was being made when its maker was killed. Plain JavaScript, Node 18 and up.
import { readdirSync, rmSync } from "node:fs";
import path from "node:path";
import { isAlive } from "./lock.mjs";

/** Removes what bears the number of a process that is gone, as in `service-1.4711.new`, `.old`. */
export function removeLeftDrafts(folder) {
  for (const name of namesIn(folder)) {
    const pid = /\.(\d+)\.(?:new|old)$/.exec(name)?.[1];
    if (pid !== undefined && !isAlive(Number(pid)))
      rmSync(path.join(folder, name), { recursive: true, force: true });
  }
}

function namesIn(folder) {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
