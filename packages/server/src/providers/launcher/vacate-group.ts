import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";

/** The files of control groups. */
export interface GroupFiles {
  read(path: string): Promise<string>;
  write(path: string, text: string): Promise<void>;
}

const kernel: GroupFiles = {
  read: (path) => readFile(path, "utf8"),
  write: (path, text) => writeFile(path, text),
};

/** Processes that fork faster than they can be moved. */
const mostRounds = 100;

/**
 * Moves every process of a v2 group into one below it, and hands controllers down: a group with processes cannot. What
 * forks or ends meanwhile is no failure.
 * @throws Error when it does not come to an end, and what the kernel refuses for another reason.
 */
export async function vacateGroup(
  group: string,
  options: { into: string; handDown: string; files?: GroupFiles },
): Promise<void> {
  const { into, handDown, files = kernel } = options;
  for (let round = 1; ; round += 1) {
    const pids = (await files.read(join(group, "cgroup.procs"))).split("\n").filter((pid) => pid !== "");
    for (const pid of pids) await unless("ESRCH", files.write(join(into, "cgroup.procs"), pid));
    const refused = await unless("EBUSY", files.write(join(group, "cgroup.subtree_control"), handDown));
    if (refused === undefined) return;
    if (round === mostRounds) throw refused;
  }
}

/** @returns the failure when it is the expected one. */
async function unless(code: string, work: Promise<void>): Promise<Error | undefined> {
  try {
    await work;
    return undefined;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === code) return error;
    throw error;
  }
}
