import { mkdtemp, readdir, readlink, rm } from "node:fs/promises";
import path from "node:path";
import { endGroupsWhere } from "../providers/native/index.ts";

const prefix = ".alcove-doctor-";

/**
 * The installation that a doctor tries providers as. Names of installations are cut to twelve characters, and a pid has up
 * to seven.
 */
export function doctorInstance(pid: number): string {
  return `doc${pid}`;
}

/** A folder to try things in, which names the process that will remove it, and whose numbers that is one of. */
export async function makePlace(folder: string): Promise<string> {
  return mkdtemp(path.join(folder, `${prefix}${process.pid}-${await pidNamespace()}-`));
}

/**
 * Ends and removes what doctors that were killed left: control groups with what runs in them, and their folders here. What a
 * doctor of another container made is left alone: whether its process lives cannot be told from here.
 * @param folder the data directory, or what there is of it: doctors make their folders there.
 * @returns the groups and folders.
 * @throws Error when something cannot be removed; the rest is.
 */
export async function removeLeftovers(folder: string): Promise<string[]> {
  const removed: string[] = [];
  const failures: unknown[] = [];
  const attempt = async (work: () => Promise<string[]>) => {
    try {
      removed.push(...(await work()));
    } catch (error) {
      failures.push(error);
    }
  };
  // Groups first: what runs in them may still write into the folders. Earlier releases called them doctor<pid>.
  await attempt(() =>
    endGroupsWhere((name) => leftBy(/^doc(?:tor)?(\d+)$/.exec(name)?.[1]), { ofOthers: "leave" }),
  );
  const ours = new RegExp(`^(\\d+)-${await pidNamespace()}-`);
  // A doctor that ran before there was a data directory made its folder above.
  for (const parent of [folder, path.dirname(folder)]) {
    for (const name of await readdir(parent).catch(() => [])) {
      if (!name.startsWith(prefix) || !leftBy(ours.exec(name.slice(prefix.length))?.[1])) continue;
      const place = path.join(parent, name);
      await attempt(async () => {
        await rm(place, { recursive: true, force: true });
        return [place];
      });
    }
  }
  if (failures.length > 0) throw new AggregateError(failures, failures.map(String).join("; "));
  return removed;
}

/** A number that no other namespace of processes has meanwhile. */
async function pidNamespace(): Promise<string> {
  return /\d+/.exec(await readlink("/proc/self/ns/pid").catch(() => ""))?.[0] ?? "0";
}

function leftBy(pid: string | undefined): boolean {
  return pid !== undefined && !lives(Number(pid));
}

function lives(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    // Another user's process cannot be signalled, and is there.
    return !(error instanceof Error && "code" in error && error.code === "ESRCH");
  }
}
