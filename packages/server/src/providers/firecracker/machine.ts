import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { deadlineAfter } from "../../platform/deadline.ts";
import { exists } from "../../platform/missing.ts";
import { isAlive, type ProcessIdentity } from "../../platform/process-identity.ts";
import { type CallOptions, DomainError, ProviderError, Unavailable } from "../../ports/index.ts";
import type { AgentClient, AgentConfigure } from "../agent/index.ts";
import { type ApiPatience, FirecrackerApi, type RateLimiter } from "./api/index.ts";
import { layerDrive, rootDrive } from "./machine-disks.ts";
import { apiSocket, vsockSocket } from "./machine-process.ts";
import type { MachineSettings } from "./machine-settings.ts";
import { memoryFile, stateFile } from "./machine-snapshots.ts";
import { macOf } from "./tap-pool.ts";

/** How often a machine that boots is looked at, and asked. */
const socketPauseMs = 5;
const askPauseMs = 20;
/** How long a process that closed its connection may take to end. */
const endMs = 1_000;
/** One question to a machine that boots. */
const askMs = 10_000;
/** The first context id that guests may have; each machine has a vsock of its own. */
const guestCid = 3;

/** Why a machine did not come up, when its process is no more: its console knows more. */
export class MachineEnded extends Error {}

/** Speaks to the process of a machine for as long as `use` takes. @throws MachineEnded; ProviderError when it does not begin to listen in time. */
export async function withApi<T>(
  machine: { folder: string; process: ProcessIdentity; openMs: number; patience: Partial<ApiPatience> },
  options: CallOptions,
  use: (api: FirecrackerApi) => Promise<T>,
): Promise<T> {
  // Through the descriptor the name is short whatever the folder's is: sockets allow 108 bytes.
  await using folder = await open(machine.folder, constants.O_RDONLY | constants.O_DIRECTORY);
  using api = new FirecrackerApi({
    socketPath: `/proc/self/fd/${folder.fd}/${apiSocket}`,
    patience: machine.patience,
  });
  try {
    await answering(api, machine, options);
    return await use(api);
  } catch (error) {
    options.signal.throwIfAborted();
    if (error instanceof MachineEnded) throw error;
    if (error instanceof Unavailable && (await endsSoon(machine.process)))
      throw new MachineEnded("Firecracker ended", { cause: error });
    throw error;
  }
}

/** A process that dies closes its connections before it has ended. */
async function endsSoon(process: ProcessIdentity): Promise<boolean> {
  for (const until = performance.now() + endMs; performance.now() < until; await delay(socketPauseMs))
    if (!(await isAlive(process))) return true;
  return false;
}

/** Between the making of its socket and its listening there, connections are refused. */
async function answering(
  api: FirecrackerApi,
  { folder, process, openMs }: { folder: string; process: ProcessIdentity; openMs: number },
  { signal }: CallOptions,
): Promise<void> {
  using deadline = deadlineAfter(openMs, signal);
  for (;;) {
    if (await exists(join(folder, apiSocket))) {
      try {
        await api.instance(deadline);
        return;
      } catch (error) {
        signal.throwIfAborted();
        if (!(error instanceof Unavailable) && !deadline.signal.aborted) throw error;
      }
    }
    if (!(await isAlive(process))) throw new MachineEnded("Firecracker ended before it answered");
    signal.throwIfAborted();
    if (deadline.signal.aborted)
      throw new ProviderError(`Firecracker did not answer at its API socket within ${openMs / 1000} s`);
    await delay(socketPauseMs);
  }
}

/** Sets a machine up and starts it. */
export async function bootMachine(
  api: FirecrackerApi,
  settings: MachineSettings,
  options: CallOptions,
): Promise<void> {
  const { kernel, initrd, bootArguments, memoryMb, vcpus, tap, networkMbit, diskRateMb } = settings;
  await api.setMachineConfig({ vcpu_count: vcpus, mem_size_mib: memoryMb }, options);
  await api.setBootSource(
    {
      kernel_image_path: kernel,
      boot_args: bootArguments,
      ...(initrd === undefined ? {} : { initrd_path: initrd }),
    },
    options,
  );
  const drives = [
    { drive_id: "root", path_on_host: rootDrive, is_root_device: true, is_read_only: true },
    { drive_id: "layer", path_on_host: layerDrive, is_root_device: false, is_read_only: false },
  ];
  const disk = limiterOf(diskRateMb * 1024 ** 2);
  for (const drive of drives)
    await api.setDrive(disk === undefined ? drive : { ...drive, rate_limiter: disk }, options);
  if (tap !== undefined) {
    const network = limiterOf((networkMbit * 1_000_000) / 8);
    const limits = network === undefined ? {} : { rx_rate_limiter: network, tx_rate_limiter: network };
    const names = { iface_id: "eth0", host_dev_name: tap.name, guest_mac: macOf(tap.guest) };
    await api.setNetworkInterface({ ...names, ...limits }, options);
  }
  await api.setVsock({ guest_cid: guestCid, uds_path: vsockSocket }, options);
  await api.setEntropy({}, options);
  await api.start(options);
}

/** Has a machine go on where that of a snapshot stood still. */
export async function restoreMachine(api: FirecrackerApi, options: CallOptions): Promise<void> {
  const backend = { backend_type: "File", backend_path: memoryFile } as const;
  await api.loadSnapshot({ snapshot_path: stateFile, mem_backend: backend, resume_vm: true }, options);
}

/** So many bytes a second, and as many at once. */
function limiterOf(bytes: number): RateLimiter | undefined {
  return bytes === 0 ? undefined : { bandwidth: { size: bytes, refill_time: 1000 } };
}

/**
 * Asks the agent of a machine that boots until it answers.
 * @throws MachineEnded; ProviderError when it does not answer in time; what the agent refuses.
 */
export async function configureAgent(
  client: AgentClient,
  request: AgentConfigure,
  { process, bootMs, signal }: CallOptions & { process: ProcessIdentity; bootMs: number },
): Promise<void> {
  using deadline = deadlineAfter(bootMs, signal);
  for (;;) {
    try {
      using once = deadlineAfter(askMs, deadline.signal);
      return await client.configure(request, { signal: once.signal });
    } catch (error) {
      signal.throwIfAborted();
      if (!(await isAlive(process))) throw new MachineEnded("the machine ended", { cause: error });
      if (deadline.signal.aborted)
        throw new ProviderError(`its agent did not answer within ${bootMs / 1000} s`, { cause: error });
      // Nothing listens yet, or it had no time: anything else is the agent's own answer.
      if (error instanceof DomainError && error.code !== "unavailable") throw error;
    }
    await delay(askPauseMs);
  }
}
