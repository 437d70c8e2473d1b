import { execFileSync } from "node:child_process";
import { closeSync, openSync, readdirSync, readFileSync } from "node:fs";
import { expect } from "vitest";

/** Runs this in one turn, in which the process has not a single descriptor left. */
export function withoutDescriptors<T>(during: () => T): T {
  const { length } = readdirSync("/proc/self/fd");
  const limits = readFileSync("/proc/self/limits", "utf8");
  const [, soft = "", hard = ""] = /^Max open files +(\d+) +(\d+)/m.exec(limits) ?? [];
  const limit = (files: string) =>
    execFileSync("prlimit", ["--pid", String(process.pid), `--nofile=${files}`]);
  // Not the millions that there may be.
  limit(`${length + 64}:${hard}`);
  const taken: number[] = [];
  try {
    expect(() => {
      for (;;) taken.push(openSync("/dev/null", "r"));
    }).toThrow("EMFILE");
    return during();
  } finally {
    for (const descriptor of taken) closeSync(descriptor);
    limit(`${soft}:${hard}`);
  }
}
