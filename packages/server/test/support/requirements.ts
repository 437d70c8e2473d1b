import { existsSync } from "node:fs";
import { platform } from "node:os";
import { describe } from "vitest";
import { messageOf } from "../../src/platform/message-of.ts";
import { agentBinary } from "./agent-binary.ts";
import { sharedEngine } from "./docker-engine.ts";
import { findProgram, runProgram } from "./programs.ts";
import { vsockDevice } from "./qemu-guest.ts";

/** What a test may need from the machine. */
export type RequirementName =
  | "linux"
  | "root"
  | "agent"
  | "launcher"
  | "docker"
  | "runsc"
  | "native"
  | "native-unprivileged"
  | "proot"
  | "busybox"
  | "compiler"
  | "skopeo"
  | "umoci"
  | "registry"
  | "debootstrap"
  | "prometheus"
  | "slirp4netns"
  | "qemu"
  | "qemu-guest"
  | "mkfs"
  | "chromium"
  | "bubblewrap"
  | "openssl"
  | "podman"
  | "rootless";

export type Requirement = { ok: true } | { ok: false; reason: string };

const ok: Requirement = { ok: true };
const missing = (reason: string): Requirement => ({ ok: false, reason });

const checks: Record<RequirementName, () => Promise<Requirement>> = {
  linux: async () => (platform() === "linux" ? ok : missing(`Linux is needed, this is ${platform()}`)),
  root: async () => (process.getuid?.() === 0 ? ok : missing("root is needed")),
  agent: () => runs(agentBinary("alcove-agent"), ["--version"], "node scripts/build-agent.mjs"),
  launcher: () => runs(agentBinary("alcove-launch"), ["--version"], "node scripts/build-agent.mjs"),
  docker: async () => {
    const root = await probe("root");
    if (!root.ok) return missing("root is needed to start a private Docker Engine");
    for (const name of ["dockerd", "containerd", "runc"]) {
      const found = await program(name, "docker.io");
      if (!found.ok) return found;
    }
    try {
      await sharedEngine();
      return ok;
    } catch (error) {
      return missing(`no Docker Engine starts here: ${messageOf(error)}`);
    }
  },
  runsc: async () => {
    const docker = await probe("docker");
    return docker.ok ? program("runsc", "runsc") : docker;
  },
  native: async () => {
    const root = await probe("root");
    if (!root.ok) return root;
    return runs(
      "unshare",
      ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "true"],
      "a kernel that allows namespaces",
    );
  },
  "native-unprivileged": async () => {
    const unshare = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "true"];
    const way = "a kernel that allows user namespaces to users";
    if (process.getuid?.() !== 0) return runs("unshare", unshare.slice(1), way);
    return runs("setpriv", ["--reuid", "65534", "--regid", "65534", "--clear-groups", ...unshare], way);
  },
  proot: () => runs("proot", ["true"], "the package proot"),
  busybox: async () => {
    const busybox = findProgram("busybox");
    if (busybox === undefined) return program("busybox", "busybox-static");
    const linked = await runProgram("ldd", [busybox]);
    const isStatic = /not a dynamic executable|statically linked/.test(linked.stdout + linked.stderr);
    return isStatic ? ok : missing("busybox is linked dynamically; install busybox-static");
  },
  compiler: () => program("gcc", "gcc"),
  skopeo: () => program("skopeo", "skopeo"),
  umoci: () => program("umoci", "umoci"),
  registry: () => program("docker-registry", "docker-registry"),
  debootstrap: async () => {
    const root = await probe("root");
    return root.ok ? program("debootstrap", "debootstrap") : root;
  },
  prometheus: async () => {
    const tool = await program("promtool", "prometheus");
    return tool.ok ? program("prometheus", "prometheus") : tool;
  },
  slirp4netns: () => program("slirp4netns", "slirp4netns"),
  qemu: () => program("qemu-system-x86_64", "qemu-system-x86"),
  "qemu-guest": async () => {
    for (const name of ["qemu", "busybox"] as const) {
      const found = await probe(name);
      if (!found.ok) return found;
    }
    return builtVsockDevice();
  },
  mkfs: async () => {
    const found = await program("mkfs.ext4", "e2fsprogs");
    return found.ok ? program("debugfs", "e2fsprogs") : found;
  },
  chromium: () => program("chromium", "chromium"),
  openssl: () => program("openssl", "openssl"),
  podman: async () => {
    const root = await probe("root");
    return root.ok ? program("podman", "podman") : root;
  },
  rootless: async () => {
    const docker = await probe("docker");
    if (!docker.ok) return docker;
    const ranges = await program("newuidmap", "uidmap");
    return ranges.ok ? program("rootlesskit", "rootlesskit") : ranges;
  },
  bubblewrap: async () => {
    const found = await program("bwrap", "bubblewrap");
    if (!found.ok) return found;
    const script = ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"];
    return runs("bwrap", script, "a kernel that lets bubblewrap make namespaces");
  },
};

const cache = new Map<RequirementName, Promise<Requirement>>();

function probe(name: RequirementName): Promise<Requirement> {
  const known = cache.get(name) ?? checks[name]();
  cache.set(name, known);
  return known;
}

/**
 * Whether this machine can run a kind of test; asked once per test file.
 * @throws Error where CI is set and something is missing: there a skipped test would be a hole nobody sees.
 */
export async function requirement(name: RequirementName): Promise<Requirement> {
  const found = await probe(name);
  if (!found.ok && process.env.CI) throw new Error(`the tests need ${name}: ${found.reason}`);
  return found;
}

/** The first of `names` this machine lacks, as the option of a contract suite; empty when it has all. */
export async function firstMissing(names: readonly RequirementName[]): Promise<{ skip?: string }> {
  for (const name of names) {
    const found = await requirement(name);
    if (!found.ok) return { skip: `${name}: ${found.reason}` };
  }
  return {};
}

/**
 * `describe` that is skipped, with the reason in its title, when the machine lacks something.
 * `await describeWith(["docker", "agent"], "DockerProvider", () => { … })`
 */
export async function describeWith(
  names: readonly RequirementName[],
  title: string,
  body: () => void,
): Promise<void> {
  const { skip } = await firstMissing(names);
  if (skip === undefined) describe(title, body);
  else describe.skip(`${title} (skipped: ${skip})`, body);
}

async function program(name: string, debianPackage: string): Promise<Requirement> {
  return findProgram(name) === undefined
    ? missing(`${name} is not installed (Debian package ${debianPackage})`)
    : ok;
}

/**
 * Skips a single test for what the machine lacks and CI has to have.
 * @throws Error with CI=true, where nothing is skipped in silence.
 */
export function skipWithout(context: { skip(why: string): void }, why: string): void {
  if (!["", "0", "false"].includes(process.env.CI ?? "")) throw new Error(`CI must not skip: ${why}`);
  context.skip(why);
}

/** Waits for a build that is under way, as scripts/test-env.sh begins one. */
async function builtVsockDevice(): Promise<Requirement> {
  try {
    await vsockDevice();
    return ok;
  } catch (error) {
    return missing(messageOf(error));
  }
}

async function runs(file: string, args: readonly string[], way: string): Promise<Requirement> {
  const path = file.includes("/") ? file : findProgram(file);
  if (path === undefined || !existsSync(path)) return missing(`${file} is missing (way out: ${way})`);
  const result = await runProgram(path, args, { timeoutMs: 10_000 });
  if (result.exitCode === 0) return ok;
  const said = result.stderr.trim() || `exit code ${result.exitCode}`;
  return missing(`${file} ${args.join(" ")} fails: ${said} (way out: ${way})`);
}
