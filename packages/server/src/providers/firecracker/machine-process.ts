import { spawn } from "node:child_process";
import { readdir, readFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { orMissing } from "../../platform/missing.ts";
import { identify, isAlive, type ProcessIdentity } from "../../platform/process-identity.ts";
import { type CallOptions, ProviderError, type RuntimeId } from "../../ports/index.ts";
import type { Jail } from "./jails.ts";

/** Names of a machine's sockets, in its folder, which is its process's working directory. */
export const apiSocket = "api.sock";
export const vsockSocket = "v.sock";

const pauseMs = 5;

/**
 * Starts Firecracker for one machine, in a session of its own so that it outlives the service.
 * @param options.output of its console and log; closed by the caller.
 * @returns undefined when it has ended already.
 */
export async function startProcess(options: {
  program: string;
  /** With a jail the folder that this is in; else the machine's own. */
  folder: string;
  jail: Jail | undefined;
  runtimeId: RuntimeId;
  output: number;
}): Promise<ProcessIdentity | undefined> {
  const { folder, jail, runtimeId, output } = options;
  const own = ["--api-sock", apiSocket, "--level", "Warning"];
  const program = jail?.jailer ?? options.program;
  const args =
    jail === undefined ? ["--id", runtimeId, ...own] : [...jailed(jail, folder, runtimeId), "--", ...own];
  const child = spawn(program, args, {
    cwd: folder,
    detached: true,
    stdio: ["ignore", output, output],
    env: { PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" },
  });
  const failed = new Promise<never>((_resolve, reject) => child.once("error", reject));
  failed.catch(() => undefined);
  if (child.pid === undefined)
    return failed.catch((error: unknown) => {
      throw new ProviderError(
        `${program} cannot be started; install it or set providers.firecracker.${jail === undefined ? "firecracker_path" : "jailer_path"}`,
        { cause: error },
      );
    });
  child.unref();
  return identify(child.pid);
}

/** The jailer becomes Firecracker, in the same process. No control group is asked of it: the machine's size bounds what it takes. */
function jailed({ program, uid, gid }: Jail, folder: string, runtimeId: RuntimeId): string[] {
  return [
    ...["--id", runtimeId, "--exec-file", program, "--uid", String(uid), "--gid", String(gid)],
    ...["--cgroup-version", "2", "--chroot-base-dir", folder],
  ];
}

/** Firecracker processes of a machine: what a service that died before its note started. */
export async function findProcesses(runtimeId: RuntimeId): Promise<ProcessIdentity[]> {
  const found: ProcessIdentity[] = [];
  for (const name of await readdir("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const words = (await readable(readFile(`/proc/${name}/cmdline`, "utf8"))).split("\0");
    const isOurs = words[words.indexOf("--id") + 1] === runtimeId || words.includes(`--id=${runtimeId}`);
    if (!isOurs || !words.includes("--api-sock")) continue;
    const identity = await identify(Number(name));
    if (identity !== undefined) found.push(identity);
  }
  return found;
}

/** Resolves when it is dead. @throws the signal's reason. */
export async function killProcess(identity: ProcessIdentity, { signal }: CallOptions): Promise<void> {
  for (let again = false; await isAlive(identity); again = true) {
    if (!again) kill(identity.pid);
    await delay(pauseMs, undefined, { signal }).catch(() => signal.throwIfAborted());
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "ESRCH")) throw error;
  }
}

/** A process that ends while it is looked at is none of ours. */
async function readable(text: Promise<string>): Promise<string> {
  try {
    return await orMissing(text, "");
  } catch (error) {
    if (error instanceof Error && "code" in error) return "";
    throw error;
  }
}
