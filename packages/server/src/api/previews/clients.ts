import type { IncomingMessage } from "node:http";
import { BlockList, isIP, isIPv6 } from "node:net";

/** Where a request came from, as far as that can be believed. */
export interface Client {
  /** The first on the way back from here that is no trusted proxy; what Fastify calls `ip`. */
  readonly address: string;
  /** For X-Forwarded-For: what trusted proxies said, and whom the connection came from. */
  readonly forwardedFor: string;
  readonly proto: "http" | "https";
}

/** Names that stand for ranges, as Fastify knows them. */
const named: Readonly<Record<string, readonly string[]>> = {
  loopback: ["127.0.0.0/8", "::1/128"],
  linklocal: ["169.254.0.0/16", "fe80::/10"],
  uniquelocal: ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"],
};
const longestForwardedFor = 1_024;

/** Tells where requests come from: `X-Forwarded-For` and `X-Forwarded-Proto` count from `server.trusted_proxies` alone. */
export class Clients {
  readonly #trusted = new BlockList();
  readonly #https: boolean;

  /** @param options.publicUrl where it is https, whatever reaches a public name has come through TLS. */
  constructor(options: { trustedProxies: readonly string[]; publicUrl: string }) {
    for (const proxy of options.trustedProxies.flatMap((name) => named[name] ?? [name])) {
      const [address = "", bits] = proxy.split("/");
      const family = isIPv6(address) ? "ipv6" : "ipv4";
      if (bits === undefined) this.#trusted.addAddress(address, family);
      else this.#trusted.addSubnet(address, Number(bits), family);
    }
    this.#https = URL.parse(options.publicUrl)?.protocol === "https:";
  }

  /** @param host by which it was reached. */
  of(request: IncomingMessage, host: string): Client {
    const address = plain(request.socket.remoteAddress ?? "");
    const local = host === "localhost" || host.endsWith(".localhost");
    const proto = this.#https && !local ? "https" : "http";
    if (!this.#isTrusted(address)) return { address, forwardedFor: address, proto };
    const { "x-forwarded-for": before, "x-forwarded-proto": said } = request.headers;
    const chain = typeof before === "string" ? before.slice(-longestForwardedFor) : "";
    const way = [...chain.split(",").map((one) => plain(one.trim())), address].filter((one) => one !== "");
    return {
      address: way.findLast((one) => !this.#isTrusted(one)) ?? way[0] ?? "",
      forwardedFor: chain === "" ? address : `${chain}, ${address}`,
      proto: said === "https" || said === "http" ? said : proto,
    };
  }

  #isTrusted(address: string): boolean {
    return isIP(address) !== 0 && this.#trusted.check(address, isIPv6(address) ? "ipv6" : "ipv4");
  }
}

/** An IPv4 address as such, also on a socket for both kinds. */
function plain(address: string): string {
  return address.replace(/^::ffff:(?=\d+\.)/, "");
}
