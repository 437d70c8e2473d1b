import { existsSync } from "node:fs";
import { readdir, readFile, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { ProviderError } from "../../ports/index.ts";

const mountPoint = "/sys/fs/cgroup";
/** A delegated group lies this deep at most: slice, slice, service, ours. */
const deepest = 6;
const patienceMs = 10_000;
const pauseMs = 20;
/** How processes are listed that have no number in the pid namespace of who reads. */
const unnumbered = 0;

/**
 * Ends every process in the control groups of an installation and removes them, without its data directory.
 * @param name as `instanceName` makes it.
 * @returns the groups.
 * @throws ProviderError when something does not end.
 */
export function endGroupsOf(name: string): Promise<string[]> {
  return endGroupsWhere((candidate) => candidate === name);
}

/**
 * Ends every process in the control groups of the installations that are meant, and removes them.
 * @param meant asked with the name of an installation, as `instanceName` makes it.
 * @param options.ofOthers what becomes of groups in which processes of other pid namespaces run; default: end.
 * @returns the groups.
 * @throws ProviderError when something does not end.
 */
export async function endGroupsWhere(
  meant: (name: string) => boolean,
  { ofOthers = "end" }: { ofOthers?: "end" | "leave" } = {},
): Promise<string[]> {
  const ended: string[] = [];
  for (const group of await findGroups(mountPoint, meant, deepest)) {
    if (ofOthers === "leave" && (await processesBelow(group)).includes(unnumbered)) continue;
    await endGroup(group);
    ended.push(group);
  }
  return ended;
}

async function findGroups(
  folder: string,
  meant: (name: string) => boolean,
  depth: number,
): Promise<string[]> {
  const found: string[] = [];
  for (const child of await foldersIn(folder)) {
    const path = join(folder, child);
    const name = /^alcove-([a-zA-Z0-9]+)$/.exec(child)?.[1];
    // Below an installation's own group there are only its sandboxes, perhaps thousands.
    if (name !== undefined) found.push(...(meant(name) ? [path] : []));
    else if (depth > 0) found.push(...(await findGroups(path, meant, depth - 1)));
  }
  return found;
}

async function endGroup(group: string): Promise<void> {
  const deadline = performance.now() + patienceMs;
  for (;;) {
    if (existsSync(join(group, "cgroup.kill"))) await writeFile(join(group, "cgroup.kill"), "1");
    const pids = await processesBelow(group);
    for (const pid of pids) kill(pid);
    if (pids.length === 0 && (await removeTree(group))) return;
    if (performance.now() > deadline)
      throw new ProviderError(`${pids.length} processes in ${group} do not end`);
    await delay(pauseMs);
  }
}

async function processesBelow(group: string): Promise<number[]> {
  const own = (await orGone(readFile(join(group, "cgroup.procs"), "utf8"), "")).split("\n").filter(Boolean);
  const below = await Promise.all(
    (await foldersIn(group)).map((child) => processesBelow(join(group, child))),
  );
  return [...own.map(Number), ...below.flat()];
}

/** @returns whether nothing is left; a group is busy for a moment after its last process. */
async function removeTree(group: string): Promise<boolean> {
  for (const child of await foldersIn(group)) if (!(await removeTree(join(group, child)))) return false;
  try {
    await rmdir(group);
    return true;
  } catch (error) {
    if (error instanceof Error && "code" in error) return error.code === "ENOENT";
    throw error;
  }
}

async function foldersIn(folder: string): Promise<string[]> {
  const entries = await orGone(readdir(folder, { withFileTypes: true }), []);
  return entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
}

function kill(pid: number): void {
  // To the kernel that is the caller's own process group.
  if (pid === unnumbered) return;
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "ESRCH")) throw error;
  }
}

async function orGone<T>(work: Promise<T>, fallback: T): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (error instanceof Error && "code" in error && (error.code === "ENOENT" || error.code === "ENODEV"))
      return fallback;
    throw error;
  }
}
