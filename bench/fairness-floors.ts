import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { access, mkdir, rmdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { forkExec } from "./floors.ts";

/** As a sandbox has it that asks for one virtual processor. */
const [quotaUs, periodUs] = [100_000, 100_000];

/** What one load costs a bare fork+exec beside it, each in a control group as sandboxes are, with none of our processes. */
export interface FairnessFloor extends AsyncDisposable {
  /** Milliseconds of each fork+exec of `true`. */
  block(count: number): Promise<number[]>;
  /** @returns what ends it. */
  usesProcessor(): Promise<() => Promise<void>>;
  /** A producer whose output a plain Node program hands to another one over HTTP. @returns what ends it. */
  floods(): Promise<() => Promise<void>>;
}

/** @returns undefined where no control groups can be made. */
export async function fairnessFloor(): Promise<FairnessFloor | undefined> {
  const groups = await makeGroups(`alcove-bench-${process.pid}`).catch(() => undefined);
  if (groups === undefined) return undefined;
  const { hog, neighbour } = groups;
  const within = (group: string, command: string) => `echo $$ > ${group}/cgroup.procs && ${command}`;
  return {
    block: async (count) => forkExec(["/bin/true"], count, { group: neighbour }),
    usesProcessor: async () =>
      endOf(started(within(hog, "{ while :; do :; done & while :; do :; done; }"), "ignore")),
    floods: async () => {
      const serving = `
        const server = require("node:http").createServer((_, answer) => process.stdin.pipe(answer));
        server.listen(0, "127.0.0.1", () => console.log(server.address().port));`;
      const server = started(`sh -c '${within(hog, "exec yes")}' | exec "$0" -e '${serving}'`, "pipe");
      const [port] = (await once(server.stdout ?? server, "data")) as [Buffer];
      const reading = `require("node:http").get("http://127.0.0.1:${Number(port)}", (answer) => answer.resume());`;
      const reader = started(`exec "$0" -e '${reading}'`, "ignore");
      const ends = [endOf(reader), endOf(server)];
      return async () => {
        for (const end of ends) await end();
      };
    },
    [Symbol.asyncDispose]: () => removeAll([hog, neighbour, path.dirname(hog)]),
  };
}

async function makeGroups(name: string): Promise<{ hog: string; neighbour: string }> {
  const isV1 = await access("/sys/fs/cgroup/cpu/cpu.shares").then(
    () => true,
    () => false,
  );
  const parent = path.join(isV1 ? "/sys/fs/cgroup/cpu" : "/sys/fs/cgroup", name);
  const [hog, neighbour] = [path.join(parent, "hog"), path.join(parent, "neighbour")];
  const made: string[] = [];
  const make = async (group: string) => {
    await mkdir(group);
    made.unshift(group);
  };
  try {
    await make(parent);
    if (!isV1) await writeFile(path.join(parent, "cgroup.subtree_control"), "+cpu");
    for (const group of [hog, neighbour]) {
      await make(group);
      if (isV1) await writeFile(path.join(group, "cpu.cfs_quota_us"), String(quotaUs));
      else await writeFile(path.join(group, "cpu.max"), `${quotaUs} ${periodUs}`);
    }
  } catch (error) {
    await removeAll(made);
    throw error;
  }
  return { hog, neighbour };
}

async function removeAll(groups: readonly string[]): Promise<void> {
  for (const group of groups) await rmdir(group);
}

/** In a process group of its own; "$0" is Node. */
function started(script: string, stdout: "pipe" | "ignore"): ChildProcess {
  return spawn("sh", ["-c", script, process.execPath], {
    stdio: ["ignore", stdout, "inherit"],
    detached: true,
  });
}

function endOf(child: ChildProcess): () => Promise<void> {
  const ended = once(child, "exit");
  return async () => {
    if (child.pid !== undefined && child.exitCode === null) process.kill(-child.pid, "SIGKILL");
    await ended;
  };
}
