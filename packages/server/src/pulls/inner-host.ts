import { lookup } from "node:dns/promises";
import { BlockList, isIP, isIPv6 } from "node:net";
import { networkInterfaces } from "node:os";

// Two lists: one of both would find addresses of IPv4 in `::/3`.
const innerIpv4 = new BlockList();
const innerIpv6 = new BlockList();
for (const [network, length] of [
  ["0.0.0.0", 8],
  ["10.0.0.0", 8],
  ["100.64.0.0", 10],
  ["127.0.0.0", 8],
  // Where clouds serve credentials, in part.
  ["168.63.129.16", 32],
  ["169.254.0.0", 16],
  ["172.16.0.0", 12],
  ["192.0.0.0", 24],
  ["192.168.0.0", 16],
  ["198.18.0.0", 15],
  ["224.0.0.0", 3],
] as const)
  innerIpv4.addSubnet(network, length, "ipv4");
// All of IPv6 that is not global; a global one may hold an address of IPv4, by NAT64 or 6to4.
for (const [network, length] of [
  ["::", 3],
  ["2002::", 16],
  ["4000::", 2],
  ["8000::", 1],
] as const)
  innerIpv6.addSubnet(network, length, "ipv6");

/** Whether an address is loopback, link-local, private, multicast or reserved, or one of this machine's own. */
export function isInnerAddress(address: string): boolean {
  const isInner = isIPv6(address) ? innerIpv6.check(address, "ipv6") : innerIpv4.check(address);
  if (isInner) return true;
  return Object.values(networkInterfaces()).some((held) => held?.some((own) => own.address === address));
}

/**
 * Whether a host, `name`, `name:port` or `[address]:port`, is, or leads by name to, an inner address. A name that leads nowhere
 * does not. What a name leads to later is not known: who connects asks again.
 */
export async function isInnerHost(host: string): Promise<boolean> {
  const name = host.replace(/:\d+$/, "").replace(/^\[|\]$/g, "");
  if (isIP(name) !== 0) return isInnerAddress(name);
  const found = await lookup(name, { all: true }).catch(() => []);
  return found.some(({ address }) => isInnerAddress(address));
}
