import { readFileSync } from "node:fs";
import { SharedTable } from "./places.ts";

/** Linux's own, and what is taken where it cannot be read. */
const usualInstances = 128;

/**
 * For agents that are one user to the kernel, as those of docker and proot are: it gives each user so many instances of
 * inotify, and every watch is one. An engine on another machine is taken to be set up as this one.
 */
export function sharedWatchTable(): SharedTable {
  return new SharedTable({ what: "watches of files", most: instancesOfAUser() });
}

function instancesOfAUser(): number {
  try {
    const told = Number(readFileSync("/proc/sys/fs/inotify/max_user_instances", "utf8"));
    return Number.isInteger(told) ? told : usualInstances;
  } catch {
    // Another system than Linux, where the engine has a machine of its own.
    return usualInstances;
  }
}
