import { isIPv6 } from "node:net";

/**
 * @returns what one party can be expected to hold of addresses: an IPv4 address, or the /64 of an IPv6 one, since whoever
 * has one of those has all of them.
 */
export function addressBlock(address: string): string {
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1];
  if (mapped !== undefined) return mapped;
  const plain = address.split("%", 1)[0] ?? "";
  if (!isIPv6(plain)) return address;
  const [head = "", tail] = plain.split("::");
  const groups = head === "" ? [] : head.split(":");
  const behind = tail === undefined || tail === "" ? [] : tail.split(":");
  const behindCount = behind.reduce((count, group) => count + (group.includes(".") ? 2 : 1), 0);
  while (groups.length < 8 - behindCount) groups.push("0");
  return `${[...groups, ...behind]
    .slice(0, 4)
    .map((group) => Number.parseInt(group, 16).toString(16))
    .join(":")}::/64`;
}
