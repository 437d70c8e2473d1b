import type { IncomingMessage } from "node:http";
import { expect, test } from "vitest";
import { Clients } from "./clients.ts";

const clients = new Clients({ trustedProxies: ["10.0.0.0/8", "::1"], publicUrl: "" });

test.each<[string, string, string | undefined, string]>([
  ["192.0.2.1", "the connection", undefined, "192.0.2.1"],
  ["192.0.2.1", "the connection, whatever it says", "192.0.2.7", "192.0.2.1"],
  ["::ffff:10.0.0.1", "whom a trusted proxy names", "192.0.2.8, 192.0.2.7", "192.0.2.7"],
  ["::1", "whom the first of several trusted proxies names", "192.0.2.7, ::ffff:10.0.0.2", "192.0.2.7"],
  ["10.0.0.1", "what is no address, which nobody trusts", "192.0.2.7, somebody", "somebody"],
  ["10.0.0.1", "the furthest, where all are trusted", "10.0.0.3, 10.0.0.2", "10.0.0.3"],
  ["10.0.0.1", "the proxy, where it names nobody", undefined, "10.0.0.1"],
])("from %s: %s", (remoteAddress, _, said, address) => {
  const headers = said === undefined ? {} : { "x-forwarded-for": said };
  const request = { headers, socket: { remoteAddress } } as unknown as IncomingMessage;
  expect(clients.of(request, "example.com").address).toBe(address);
});
