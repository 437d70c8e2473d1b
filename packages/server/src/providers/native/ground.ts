import { readFile } from "node:fs/promises";
import { userInfo } from "node:os";
import { enoughEpollWatches } from "../../platform/epoll-watches.ts";
import type { Logger } from "../../platform/logger.ts";
import { isMomentary } from "../../platform/momentary.ts";
import { hostRootPath, makeHostRoot } from "../host-root/host-root.ts";
import type { IdsSpec } from "../launcher/index.ts";
import { lackedRoom } from "./advice.ts";
import { Cgroups } from "./cgroups.ts";
import { type DiskPool, openDiskPool } from "./disk-template.ts";
import { idsPerSandbox } from "./id-ranges.ts";
import { notesOnTables, readMachineTables } from "./machine-tables.ts";

/** What this machine and this user allow. Found out once. */
export interface Ground {
  rooted: boolean;
  /** How ids are mapped by a service that is not root. */
  unprivilegedIds: Exclude<IdsSpec, { kind: "range" }>;
  cgroups: Cgroups | undefined;
  /** Where writable layers of limited size come from; undefined: they have no limit of their own. */
  disks: DiskPool | undefined;
  /** Path of the root below image `host`. */
  skeleton: string;
  /** Remarks for check(). */
  notes: string[];
}

interface SurveyOptions {
  dataDir: string;
  instance: string;
  diskMb: number;
  minFreeMb: number;
  findProgram: (name: string) => Promise<string | undefined>;
  logger: Logger;
}

/** @throws Error of the file system, and leaves no group then. */
export async function surveyGround(options: SurveyOptions): Promise<Ground> {
  const rooted = process.getuid?.() === 0;
  const notes: string[] = [];
  const groups = await Cgroups.open(options);
  if ("missing" in groups) {
    // Of another user that is usual; root has lost what holds sandboxes to what they may use.
    if (rooted)
      options.logger.warn(
        { missing: groups.missing },
        "sandboxes made from now on have no control groups: their memory, processors and processes have weaker limits; `alcove doctor` tells which",
      );
    notes.push(
      `limits are rlimits: memory for each process, processes for each user, no share of the processors (${groups.missing}; ` +
        "run the service as root, or under systemd with Delegate=yes)",
    );
    return await surveyDisks(options, { rooted, notes, cgroups: undefined });
  }
  try {
    return await surveyDisks(options, { rooted, notes, cgroups: groups });
  } catch (error) {
    await groups.close();
    throw error;
  }
}

async function surveyDisks(
  options: SurveyOptions,
  { rooted, notes, cgroups }: Pick<Ground, "rooted" | "notes" | "cgroups">,
): Promise<Ground> {
  const unprivilegedIds = rooted ? single : await subids(options.findProgram);
  if (!rooted && unprivilegedIds.kind === "single") {
    notes.push(
      "sandboxes have one user only: apt, su and chown fail inside (way out: the package uidmap, and a range of " +
        `${idsPerSandbox} ids for ${userName()} in /etc/subuid and /etc/subgid)`,
    );
  }
  const disks = await diskPool(options, rooted);
  if (disks !== undefined && "missing" in disks) {
    const guard = options.minFreeMb > 0 ? `, only the guard that keeps ${options.minFreeMb} MB free` : "";
    notes.push(`a sandbox's disk has no limit of its own${guard}: ${disks.missing}`);
  }
  notes.push(...notesOnTables(await readMachineTables()));
  // Root of a sandbox is the service's user there, and has its watches.
  const watches = rooted ? undefined : await enoughEpollWatches();
  if (watches !== undefined)
    notes.push(
      `sandboxes can take all watches of epoll that ${userName()} may have, without which this service ends: sysctl fs.epoll.max_user_watches=${watches}`,
    );
  const limited = disks === undefined || "missing" in disks ? undefined : disks;
  return {
    rooted,
    unprivilegedIds,
    cgroups,
    disks: limited,
    skeleton: await hostRoot(options.dataDir),
    notes,
  };
}

/** On a full disk it is still missing. */
async function hostRoot(dataDir: string): Promise<string> {
  try {
    return await makeHostRoot(dataDir);
  } catch (error) {
    if (lackedRoom(error)) return hostRootPath(dataDir);
    throw error;
  }
}

async function diskPool(
  options: { dataDir: string; diskMb: number; findProgram: (name: string) => Promise<string | undefined> },
  rooted: boolean,
): Promise<DiskPool | { missing: string } | undefined> {
  if (options.diskMb === 0) return undefined;
  if (!rooted) return { missing: "a user without rights cannot mount one" };
  return openDiskPool({ ...options, mkfs: await options.findProgram("mkfs.ext4") });
}

const single = { kind: "single" } as const;

async function subids(
  findProgram: (name: string) => Promise<string | undefined>,
): Promise<Ground["unprivilegedIds"]> {
  for (const name of ["newuidmap", "newgidmap"]) {
    if ((await findProgram(name)) === undefined) return single;
  }
  const [uids, gids] = await Promise.all([grantedRange("/etc/subuid"), grantedRange("/etc/subgid")]);
  if (uids === undefined || gids === undefined) return single;
  const count = Math.min(uids.count, gids.count, idsPerSandbox - 1);
  return { kind: "subids", uid_start: uids.start, gid_start: gids.start, count };
}

/** The first range that `/etc/subuid` or `/etc/subgid` grants this user. */
async function grantedRange(path: string): Promise<{ start: number; count: number } | undefined> {
  let text: string;
  try {
    text = await readFile(path, "utf8");
  } catch (error) {
    if (error instanceof Error && "code" in error && !isMomentary(error)) return undefined;
    throw error;
  }
  const names = [userName(), String(process.getuid?.())];
  for (const line of text.split("\n")) {
    const [name, start, count] = line.split(":");
    if (name === undefined || !names.includes(name)) continue;
    const range = { start: Number(start), count: Number(count) };
    if (Number.isInteger(range.start) && range.count > 0) return range;
  }
  return undefined;
}

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    // A user without an entry in /etc/passwd has only a number.
    return String(process.getuid?.());
  }
}
