import { access, constants } from "node:fs/promises";
import { messageOf } from "../../platform/message-of.ts";
import { runProgram } from "../../platform/run-program.ts";
import type { CallOptions } from "../../ports/index.ts";
import { MachineDisks } from "./machine-disks.ts";

/** What of the host machines need. */
export interface GroundNeeds {
  firecrackerPath: string;
  /** Empty: none is used. */
  jailerPath: string;
  kernelPath: string;
  initrdPath: string;
  agentBinary: string;
  /** The device of the kernel's virtualization. */
  kvm: string;
}

export type Ground = { version: string } | { missing: string };

/** Tries what machines need, without making one. */
export async function lookAtGround(needs: GroundNeeds, options: CallOptions): Promise<Ground> {
  const { firecrackerPath, jailerPath, kernelPath, initrdPath, agentBinary, kvm } = needs;
  if (process.platform !== "linux")
    return { missing: `Firecracker needs Linux, this is ${process.platform}` };
  if (!(await may(kvm, constants.R_OK | constants.W_OK)))
    return {
      missing: `${kvm} cannot be opened for reading and writing: the host needs hardware virtualization (as a virtual machine, nested), the module kvm, and the service's user in the group that owns the device`,
    };
  if (kernelPath === "")
    return {
      missing:
        "providers.firecracker.kernel_path is not set: machines need an uncompressed Linux kernel (vmlinux) with virtio and vsock built in",
    };
  for (const [key, path] of [
    ["kernel_path", kernelPath],
    ["initrd_path", initrdPath],
  ] as const)
    if (path !== "" && !(await may(path, constants.R_OK)))
      return { missing: `providers.firecracker.${key} ${path} cannot be read` };
  if (!(await may(agentBinary, constants.R_OK)))
    return { missing: `the agent ${agentBinary} is missing; "node scripts/build-agent.mjs" builds it` };
  const tool = await MachineDisks.missing();
  if (tool !== undefined) return { missing: `disks of microVMs need ${tool}` };
  const firecracker = await versionOf("Firecracker", firecrackerPath, "firecracker_path", options);
  if ("missing" in firecracker || jailerPath === "") return firecracker;
  if (process.getuid?.() !== 0)
    return {
      missing: "the jailer needs a service that is root; leave providers.firecracker.jailer_path empty",
    };
  const jailer = await versionOf("Jailer", jailerPath, "jailer_path", options);
  if ("missing" in jailer) return jailer;
  return jailer.version === firecracker.version
    ? firecracker
    : {
        missing: `the jailer is of version ${jailer.version}, Firecracker of ${firecracker.version}: install both of one release`,
      };
}

async function versionOf(
  name: "Firecracker" | "Jailer",
  program: string,
  key: string,
  options: CallOptions,
): Promise<Ground> {
  try {
    const said = await runProgram(program, ["--version"], options);
    const version = new RegExp(`${name} v(\\S+)`).exec(said)?.[1];
    return version === undefined
      ? { missing: `${program} --version does not say that it is ${name}` }
      : { version };
  } catch (error) {
    options.signal.throwIfAborted();
    return { missing: `${messageOf(error)} (install Firecracker or set providers.firecracker.${key})` };
  }
}

function may(path: string, mode: number): Promise<boolean> {
  return access(path, mode).then(
    () => true,
    () => false,
  );
}
