import { execFile } from "node:child_process";
import { access } from "node:fs/promises";
import path from "node:path";
import { promisify } from "node:util";
import { projectRoot } from "./service.ts";
import { timeEach } from "./stats.ts";

const run = promisify(execFile);

let built: Promise<string> | undefined;

/** Builds the floor program once. @returns its path. */
export function floorProgram(): Promise<string> {
  built ??= build();
  return built;
}

async function build(): Promise<string> {
  const crate = path.join(projectRoot, "bench", "floor");
  await run("cargo", ["build", "--release", "--quiet"], { cwd: crate });
  return path.join(crate, "target", "release", "alcove-floor");
}

/**
 * fork+exec+wait of `argv` from a resident process, milliseconds of each run.
 * @param options.group folder of a control group that they are in.
 */
export async function forkExec(
  argv: readonly string[],
  count: number,
  options: { group?: string } = {},
): Promise<number[]> {
  const program = await floorProgram();
  const command = [program, "forkexec", String(count), ...argv];
  const joins = `echo $$ > ${options.group}/cgroup.procs && exec "$0" "$@"`;
  const [file = program, ...rest] = options.group === undefined ? command : ["sh", "-c", joins, ...command];
  const { stdout } = await run(file, rest);
  return stdout
    .trim()
    .split("\n")
    .map((line) => Number(line) / 1e6)
    .slice(Math.floor(count / 10));
}

/** What two resident processes at once reach, `count` each: while they run, as the calls of clients are counted, without their own start. */
export async function forkExecPerSecond(argv: readonly string[], count: number): Promise<number> {
  const program = await floorProgram();
  const outputs = await Promise.all([0, 1].map(() => run(program, ["forkexec", String(count), ...argv])));
  const taken = outputs.flatMap(({ stdout }) => stdout.trim().split("\n").map(Number));
  const busyMs = taken.reduce((sum, each) => sum + each, 0) / 1e6 / outputs.length;
  return (taken.length * 1_000) / busyMs;
}

export async function which(name: string): Promise<string | undefined> {
  for (const folder of (process.env.PATH ?? "").split(path.delimiter)) {
    const candidate = path.join(folder, name);
    const found = await access(candidate).then(
      () => true,
      () => false,
    );
    if (found) return candidate;
  }
  return undefined;
}

/** A program started afresh each time, milliseconds of each run, from the resident floor program. */
export async function bubblewrap(count: number): Promise<number[] | undefined> {
  const bwrap = await which("bwrap");
  if (bwrap === undefined) return undefined;
  const argv = [
    bwrap,
    "--unshare-all",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
  ];
  return forkExec(
    [...argv, "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "/usr/bin/true"],
    count,
  );
}

export async function freshProot(binary: string, root: string, count: number): Promise<number[]> {
  return forkExec([binary, "-0", "-r", root, "-b", "/proc", "-b", "/dev", "/bin/true"], count);
}

/** `cp` of a file to another, milliseconds of each run. */
export function copyFile(from: string, to: string, count: number): Promise<number[]> {
  return timeEach({ count, warmup: 1 }, () => run("cp", [from, to]));
}
