import { agentPath } from "./rootfs.ts";

/** Where the agent listens in each machine. */
export const agentPort = 1024;

/** The order of the machine's drives gives them their names. */
const rootDevice = "/dev/vda";
const layerDevice = "/dev/vdb";

/** Of a machine's first network interface; IPv4. */
export interface GuestNetwork {
  /** With the length of the network: `10.0.0.2/30`. */
  address: string;
  gateway: string;
  dns?: string;
}

/**
 * The kernel's command line. `reboot=k` and `panic=1` make every end of the machine, in order or not, a reset by the keyboard
 * controller, which ends the monitor. What follows ` -- ` is for the agent as the first process; none of it may hold `--`,
 * which Firecracker takes for the separator wherever it stands.
 * @param options.pids the most processes and threads that all commands together may have.
 * @param options.pci false: there is no such bus, and the kernel need not look for one.
 */
export function bootArguments(options: {
  hostname: string;
  pids: number;
  network?: GuestNetwork;
  pci?: boolean;
}): string {
  const { hostname, pids, network, pci = true } = options;
  const kernel = ["console=ttyS0", "quiet", "reboot=k", "panic=1", "random.trust_cpu=on"];
  if (!pci) kernel.push("pci=off");
  const root = [`root=${rootDevice}`, "ro", `init=${agentPath}`];
  const agent = ["init", `layer=${layerDevice}`, `port=${agentPort}`, `hostname=${hostname}`, `pids=${pids}`];
  if (network !== undefined) {
    agent.push(`address=${network.address}`, `gateway=${network.gateway}`);
    if (network.dns !== undefined) agent.push(`dns=${network.dns}`);
  }
  return [...kernel, ...root, "--", ...agent].join(" ");
}
