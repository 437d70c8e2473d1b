import { access, constants, open } from "node:fs/promises";
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

/** `missing` has all that is not as it should be: an operator sees to everything at once. */
export type Ground = { version: string } | { missing: string };
type Version = { version: string } | { lack: string };

/** Tries what machines need, without making one. */
export async function lookAtGround(needs: GroundNeeds, options: CallOptions): Promise<Ground> {
  if (process.platform !== "linux")
    return { missing: `Firecracker needs Linux, this is ${process.platform}` };
  const firecracker = await versionOf("Firecracker", needs.firecrackerPath, "firecracker_path", options);
  const lacks = [
    await deviceLack(needs.kvm),
    ...(await fileLacks(needs)),
    await toolLack(),
    "lack" in firecracker ? firecracker.lack : undefined,
    needs.jailerPath === "" ? undefined : await jailerLack(needs.jailerPath, firecracker, options),
  ].filter((lack) => lack !== undefined);
  if ("version" in firecracker && lacks.length === 0) return firecracker;
  return { missing: lacks.join("; ") };
}

async function deviceLack(kvm: string): Promise<string | undefined> {
  if (await may(kvm, constants.R_OK | constants.W_OK)) return undefined;
  return `${kvm} cannot be opened for reading and writing: the host needs hardware virtualization (as a virtual machine, nested), the module kvm, and the service's user in the group that owns the device`;
}

async function fileLacks({ kernelPath, initrdPath, agentBinary }: GroundNeeds): Promise<string[]> {
  const lacks: string[] = [];
  if (kernelPath === "")
    lacks.push(
      "providers.firecracker.kernel_path is not set: machines need an uncompressed Linux kernel (vmlinux) with virtio and vsock built in",
    );
  for (const [key, path] of [
    ["kernel_path", kernelPath],
    ["initrd_path", initrdPath],
  ] as const)
    if (path !== "" && !(await may(path, constants.R_OK)))
      lacks.push(`providers.firecracker.${key} ${path} cannot be read`);
  if (!(await may(agentBinary, constants.R_OK)))
    lacks.push(`the agent ${agentBinary} is missing; "node scripts/build-agent.mjs" builds it`);
  return lacks;
}

async function toolLack(): Promise<string | undefined> {
  const tool = await MachineDisks.missing();
  return tool === undefined ? undefined : `disks of microVMs need ${tool}`;
}

/** @param firecracker as it was found: both have to be of one release. */
async function jailerLack(
  program: string,
  firecracker: Version,
  options: CallOptions,
): Promise<string | undefined> {
  if (process.getuid?.() !== 0)
    return "the jailer needs a service that is root; leave providers.firecracker.jailer_path empty";
  const jailer = await versionOf("Jailer", program, "jailer_path", options);
  if ("lack" in jailer) return jailer.lack;
  if (!("version" in firecracker) || jailer.version === firecracker.version) return undefined;
  return `the jailer is of version ${jailer.version}, Firecracker of ${firecracker.version}: install both of one release`;
}

/** What is wrong with a kernel on a processor whose kernels are ELF files here. @returns undefined when nothing is seen. */
export async function oddKernel(path: string): Promise<string | undefined> {
  if (process.arch !== "x64") return undefined;
  await using file = await open(path, "r");
  const { buffer } = await file.read(Buffer.alloc(4), 0, 4, 0);
  if (buffer.toString("latin1") === "\x7fELF") return undefined;
  return `providers.firecracker.kernel_path ${path} is no ELF file: Firecracker boots an uncompressed vmlinux, not a vmlinuz`;
}

async function versionOf(
  name: "Firecracker" | "Jailer",
  program: string,
  key: string,
  options: CallOptions,
): Promise<Version> {
  try {
    const said = await runProgram(program, ["--version"], options);
    const version = new RegExp(`${name} v(\\S+)`).exec(said)?.[1];
    return version === undefined
      ? { lack: `${program} --version does not say that it is ${name}` }
      : { version };
  } catch (error) {
    options.signal.throwIfAborted();
    return { lack: `${messageOf(error)} (install Firecracker or set providers.firecracker.${key})` };
  }
}

function may(path: string, mode: number): Promise<boolean> {
  return access(path, mode).then(
    () => true,
    () => false,
  );
}
