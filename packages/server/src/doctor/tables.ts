import { readFile } from "node:fs/promises";
import type { Config } from "../config/config.ts";
import { descriptorLimit } from "../platform/descriptors.ts";
import type { DoctorCheck } from "./machine.ts";

/** The service's own beside those for sandboxes: database, listeners, callers. */
const ownDescriptors = 512;
/** One connection stays open, one is for what is asked at the moment. */
const descriptorsPerSandbox = 2;

/** Whether the machine's tables are large enough for as many sandboxes as the configuration allows. */
export async function checkTables(config: Config): Promise<DoctorCheck> {
  const [pidMax, openFiles] = await Promise.all([
    readFile("/proc/sys/kernel/pid_max", "utf8").catch(() => ""),
    descriptorLimit(),
  ]);
  return tablesFor({
    sandboxes: config.defaults.maxSandboxes,
    pidsEach: config.providers.native.pidsLimit,
    pidMax: Number(pidMax.trim()) || Number.POSITIVE_INFINITY,
    openFiles,
  });
}

/** @param given `sandboxes` 0: the configuration has no bound. */
export function tablesFor(given: {
  sandboxes: number;
  pidsEach: number;
  pidMax: number;
  openFiles: number;
}): DoctorCheck {
  const { sandboxes, pidsEach, pidMax, openFiles } = given;
  const id = "tables";
  if (sandboxes === 0)
    return { id, level: "ok", message: "defaults.max_sandboxes is 0: nothing to compare the machine with" };
  const files = sandboxes * descriptorsPerSandbox + ownDescriptors;
  const short: string[] = [];
  const advice: string[] = [];
  if (sandboxes * pidsEach > pidMax) {
    short.push(
      `${sandboxes} sandboxes of ${pidsEach} processes can have more than the ${pidMax} numbers there are`,
    );
    advice.push("sysctl kernel.pid_max=4194304, or a lower providers.native.pids_limit");
  }
  if (files > openFiles) {
    short.push(
      `${sandboxes} sandboxes take ${files} descriptors of the service, which may open ${openFiles}`,
    );
    advice.push(`LimitNOFILE=${files} in the unit, or ulimit -n`);
  }
  return short.length === 0
    ? {
        id,
        level: "ok",
        message: `process numbers and descriptors are enough for max_sandboxes (${sandboxes})`,
      }
    : { id, level: "warn", message: short.join("; "), advice: advice.join("; ") };
}
