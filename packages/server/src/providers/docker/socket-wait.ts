import { type FSWatcher, watch } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { exists } from "../../platform/missing.ts";

/** Between looks where nothing tells of changes. */
const pauseMs = 10;

/** Resolves once `name` is in `folder`. @throws the signal's reason when it aborts first. */
export async function fileAppears(folder: string, name: string, signal: AbortSignal): Promise<void> {
  const path = join(folder, name);
  if (await exists(path)) return;
  const watcher = watcherOf(folder);
  if (watcher === undefined) return looksFor(path, signal);
  try {
    await new Promise<void>((resolve, reject) => {
      const onAbort = () => reject(signal.reason);
      if (signal.aborted) onAbort();
      signal.addEventListener("abort", onAbort, { once: true });
      const look = () =>
        exists(path).then((found) => {
          if (!found) return;
          signal.removeEventListener("abort", onAbort);
          resolve();
        }, reject);
      watcher.on("change", look).on("error", reject);
      // It may have come before the watch began.
      void look();
    });
  } finally {
    watcher.close();
  }
}

/** @returns undefined where the kernel gives this user no more watches: sandboxes of its user id may hold them all. */
function watcherOf(folder: string): FSWatcher | undefined {
  try {
    return watch(folder);
  } catch (error) {
    if (error instanceof Error && "code" in error && (error.code === "EMFILE" || error.code === "ENOSPC"))
      return undefined;
    throw error;
  }
}

async function looksFor(path: string, signal: AbortSignal): Promise<void> {
  while (!(await exists(path)))
    await delay(pauseMs, undefined, { signal }).catch(() => signal.throwIfAborted());
}
