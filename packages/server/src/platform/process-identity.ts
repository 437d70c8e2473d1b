import { readFile } from "node:fs/promises";
import { orMissing } from "./missing.ts";

/** A process of this boot, recognised by more than its number, which the kernel gives out again. */
export interface ProcessIdentity {
  pid: number;
  startTime: string;
  bootId: string;
}

/** @returns undefined when there is no such process, or only its remains. */
export async function identify(pid: number): Promise<ProcessIdentity | undefined> {
  const stat = await orMissing(readFile(`/proc/${pid}/stat`, "utf8"), undefined);
  if (stat === undefined) return undefined;
  // Behind the name, which may hold blanks and brackets: the state is the first field, the start time the twentieth.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const startTime = fields[19];
  if (startTime === undefined || fields[0] === "Z" || fields[0] === "X") return undefined;
  return { pid, startTime, bootId: await bootId() };
}

export async function isAlive(identity: ProcessIdentity): Promise<boolean> {
  const found = await identify(identity.pid);
  return found?.startTime === identity.startTime && found.bootId === identity.bootId;
}

let knownBootId: string | undefined;

/** Of this start of the machine. A read that failed, for want of a descriptor for one, is not what the next one is told. */
export async function bootId(): Promise<string> {
  knownBootId ??= (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
  return knownBootId;
}
