import { access, constants, readFile, rm, statfs } from "node:fs/promises";
import { createServer } from "node:net";
import os from "node:os";
import path from "node:path";
import type { Config } from "../config/config.ts";
import { lackOfReserve, usualBytes as reserveBytes } from "../platform/disk-reserve.ts";
import { freeBytes } from "../platform/free-space.ts";
import { messageOf } from "../platform/message-of.ts";
import { makePlace } from "./leftovers.ts";
import { stopEndsSandboxes, unitAdvice } from "./service-unit.ts";
import { checkTables } from "./tables.ts";

/** One finding about the machine. */
export interface DoctorCheck {
  id: string;
  level: "ok" | "warn" | "fail";
  message: string;
  /** What to do about it. */
  advice?: string;
}

const oldestNode = 26;
const littleSpaceBytes = 2 * 2 ** 30;
const probeDeadlineMs = 2_000;

/** What the service needs of the machine, whatever runs its sandboxes. */
export async function checkMachine(options: {
  config: Config;
  env: NodeJS.ProcessEnv;
  /** The agent came with a package: nothing is built here. */
  installed: boolean;
}): Promise<DoctorCheck[]> {
  const { config, env, installed } = options;
  return [
    checkSystem(),
    checkNode(),
    await checkDataDir(config.dataDir),
    await checkSpace(config),
    await checkDatabaseDisk(config),
    await checkPort(config.server),
    await checkCgroups(),
    ...(await checkUnit()),
    await checkTables(config),
    await checkUserNamespaces(),
    ...(installed ? [] : [await checkCargo(env)]),
    await checkProgram(env, {
      id: "image-tools",
      programs: ["skopeo"],
      present: "skopeo is there: `alcove image pull` works",
      absent: "skopeo is missing: `alcove image pull` cannot fetch images (import works without it)",
      advice: "on Debian and Ubuntu: sudo apt-get install -y skopeo",
    }),
  ];
}

function checkCargo(env: NodeJS.ProcessEnv): Promise<DoctorCheck> {
  return checkProgram(env, {
    id: "cargo",
    programs: ["cargo"],
    present: "cargo is there to build the agent",
    absent: "cargo is missing: the agent cannot be rebuilt from its sources",
    advice: "npm start installs it as root, or prints the command; without root: https://rustup.rs",
  });
}

function checkSystem(): DoctorCheck {
  const what = `${os.type()} ${os.release()} on ${os.arch()}, ${os.availableParallelism()} CPUs, ${Math.round(os.totalmem() / 2 ** 20)} MB memory, ${process.getuid?.() === 0 ? "root" : `uid ${process.getuid?.()}`}`;
  return process.platform === "linux"
    ? { id: "system", level: "ok", message: what }
    : {
        id: "system",
        level: "warn",
        message: `${what}: native and proot need Linux`,
        advice: "run the service on Linux, or use docker or mock",
      };
}

function checkNode(): DoctorCheck {
  const major = Number(process.versions.node.split(".")[0]);
  return major >= oldestNode
    ? { id: "node", level: "ok", message: `Node ${process.versions.node}` }
    : {
        id: "node",
        level: "fail",
        message: `Node ${process.versions.node} is older than ${oldestNode}`,
        advice: "start through npm start or bin/alcove, which bring their own",
      };
}

/** The directory itself, or the nearest above it that is there. */
export async function nearestFolder(directory: string): Promise<string> {
  for (let folder = path.resolve(directory); ; folder = path.dirname(folder)) {
    if (await exists(folder)) return folder;
  }
}

async function checkDataDir(dataDir: string): Promise<DoctorCheck> {
  try {
    await rm(await makePlace(await nearestFolder(dataDir)), { recursive: true });
    return { id: "data-dir", level: "ok", message: `data_dir ${dataDir} is writable` };
  } catch (error) {
    return {
      id: "data-dir",
      level: "fail",
      message: `data_dir ${dataDir} is not writable: ${messageOf(error)}`,
      advice: "choose another data_dir, or give it to the user the service runs as",
    };
  }
}

async function checkSpace({ dataDir, providers }: Config): Promise<DoctorCheck> {
  const { minFreeMb } = providers.native;
  try {
    const { bavail, bsize } = await statfs(await nearestFolder(dataDir));
    const free = bavail * bsize;
    if (free < minFreeMb * 2 ** 20) {
      return {
        id: "disk",
        level: "fail",
        message: `only ${Math.floor(free / 2 ** 20)} MB free under data_dir, less than the ${minFreeMb} MB of providers.native.min_free_mb: spawns on native are refused`,
        advice: "make room, move data_dir, or lower the mark",
      };
    }
    const message = `${(free / 2 ** 30).toFixed(1)} GiB free under data_dir`;
    return free >= littleSpaceBytes
      ? { id: "disk", level: "ok", message }
      : { id: "disk", level: "warn", message: `only ${message}`, advice: "make room, or move data_dir" };
  } catch (error) {
    return {
      id: "disk",
      level: "warn",
      message: `free space under data_dir is unknown: ${messageOf(error)}`,
    };
  }
}

/** May be another disk than that of `data_dir`. */
async function checkDatabaseDisk({ database }: Config): Promise<DoctorCheck> {
  const id = "database-disk";
  try {
    const folder = await nearestFolder(path.dirname(database.path));
    const message = lackOfReserve(folder);
    const free = freeBytes(folder);
    if (message === undefined && free < reserveBytes) {
      const mib = Math.floor(free / 2 ** 20);
      const state =
        mib === 0 ? "the disk of the database is full" : `only ${mib} MiB are free for the database`;
      return {
        id,
        level: "warn",
        message: `${state}; the reserve of ${reserveBytes / 2 ** 20} MiB is there`,
        advice: "destroy sandboxes or free space: spawns are refused once the reserve is given up",
      };
    }
    return message === undefined
      ? { id, level: "ok", message: `${(free / 2 ** 30).toFixed(1)} GiB free for the database` }
      : { id, level: "warn", message, advice: "make room, or move database.path" };
  } catch (error) {
    return { id, level: "warn", message: `free space for the database is unknown: ${messageOf(error)}` };
  }
}

async function checkPort(server: { host: string; port: number }): Promise<DoctorCheck> {
  const where = `${server.host}:${server.port}`;
  const error = await listenOnce(server);
  if (error === undefined) return { id: "port", level: "ok", message: `${where} is free` };
  if (error.code !== "EADDRINUSE") {
    return {
      id: "port",
      level: "fail",
      message: `cannot listen on ${where}: ${error.message}`,
      advice: "choose another server.host or server.port",
    };
  }
  return (await answersAsAlcove(where))
    ? { id: "port", level: "ok", message: `an Alcove service answers on ${where} already` }
    : {
        id: "port",
        level: "warn",
        message: `${where} is taken by another program`,
        advice: `start with another one: alcove serve --port ${server.port + 1}`,
      };
}

function listenOnce(server: { host: string; port: number }): Promise<NodeJS.ErrnoException | undefined> {
  return new Promise((resolve) => {
    const probe = createServer();
    probe.once("error", resolve);
    probe.listen(server.port, server.host, () => probe.close(() => resolve(undefined)));
  });
}

async function answersAsAlcove(where: string): Promise<boolean> {
  try {
    const response = await fetch(`http://${where}/api/v1/live`, {
      signal: AbortSignal.timeout(probeDeadlineMs),
    });
    return (await response.text()).includes('"alive"');
  } catch {
    return false;
  }
}

async function checkUnit(): Promise<DoctorCheck[]> {
  const cgroup = (await readText("/proc/self/cgroup")) ?? "";
  const message = await stopEndsSandboxes({ cgroup, otherwise: "alcove.service" });
  return message === undefined ? [] : [{ id: "service-unit", level: "warn", message, advice: unitAdvice }];
}

async function checkCgroups(): Promise<DoctorCheck> {
  const id = "cgroups";
  if (process.platform !== "linux") return { id, level: "ok", message: "no cgroups on this system" };
  const controllers = await readText("/sys/fs/cgroup/cgroup.controllers");
  if (controllers !== undefined) {
    return { id, level: "ok", message: `cgroup v2 with ${controllers.trim() || "no controllers"}` };
  }
  if (await exists("/sys/fs/cgroup/memory")) {
    const hybrid = await exists("/sys/fs/cgroup/unified/cgroup.procs");
    return { id, level: "ok", message: `cgroup v1${hybrid ? ", hybrid with v2" : ""}` };
  }
  return {
    id,
    level: "warn",
    message: "no cgroups are mounted under /sys/fs/cgroup: memory, cpu and pids limits of native are weaker",
    advice: "mount cgroup2 there, or start the container with access to its cgroups",
  };
}

/** Sysctls that forbid user namespaces to ordinary users; the native provider's own check tries the real thing. */
async function checkUserNamespaces(): Promise<DoctorCheck> {
  const id = "user-namespaces";
  if (process.platform !== "linux") return { id, level: "ok", message: "no user namespaces on this system" };
  const forbidding = [
    ["/proc/sys/user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"],
    ["/proc/sys/kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"],
    [
      "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
      "1",
      "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ],
  ] as const;
  for (const [file, value, advice] of forbidding) {
    if ((await readText(file))?.trim() === value) {
      return {
        id,
        level: "warn",
        message: `${path.basename(file)} is ${value}: user namespaces are restricted`,
        advice,
      };
    }
  }
  return (await exists("/proc/self/ns/user"))
    ? { id, level: "ok", message: "user namespaces are allowed by the kernel's settings" }
    : { id, level: "warn", message: "this kernel has no user namespaces", advice: "use docker" };
}

async function checkProgram(
  env: NodeJS.ProcessEnv,
  wanted: { id: string; programs: readonly string[]; present: string; absent: string; advice: string },
): Promise<DoctorCheck> {
  const { id, programs, present, absent, advice } = wanted;
  const found = await Promise.all(programs.map((name) => onPath(name, env)));
  return found.every(Boolean)
    ? { id, level: "ok", message: present }
    : { id, level: "warn", message: absent, advice };
}

async function onPath(name: string, env: NodeJS.ProcessEnv): Promise<boolean> {
  for (const folder of (env.PATH ?? "").split(path.delimiter)) {
    if (folder !== "" && (await exists(path.join(folder, name), constants.X_OK))) return true;
  }
  return false;
}

function exists(file: string, mode = constants.F_OK): Promise<boolean> {
  return access(file, mode).then(
    () => true,
    () => false,
  );
}

function readText(file: string): Promise<string | undefined> {
  return readFile(file, "utf8").catch(() => undefined);
}
