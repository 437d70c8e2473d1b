import { expect, test } from "vitest";
import { isInnerAddress, isInnerHost } from "./inner-host.ts";

test.each([
  ...["127.0.0.1:5000", "127.9.9.9", "10.1.2.3", "172.31.0.1", "192.168.1.1:443", "169.254.169.254"],
  ...["100.64.0.1", "0.0.0.0:80", "168.63.129.16", "224.0.0.1", "255.255.255.255", "localhost:1"],
  ...["[::1]:5000", "[::]", "[::ffff:10.0.0.1]:80", "[fe80::1]", "[fd00::1]", "[64:ff9b::a00:1]"],
  // Spellings that resolvers take for addresses.
  ...["2130706433:80", "0x7f.1:80", "LOCALHOST"],
])("%s is an inner host", async (host) => {
  expect(await isInnerHost(host)).toBe(true);
});

test.each(["192.0.2.1", "8.8.8.8", "172.32.0.1", "2606:4700::1111"])("%s is none", (address) => {
  expect(isInnerAddress(address)).toBe(false);
});
