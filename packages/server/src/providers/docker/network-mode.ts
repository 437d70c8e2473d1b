import { BadRequest, type NetworkMode } from "../../ports/index.ts";

/** Of the network between a sandbox and its helper: who resolves names there. agent/alcove-launch/src/network/addresses.rs. */
export const outboundResolver = "198.18.255.3";

/**
 * The network of a sandbox: what the operator configured, or less when the request says so. `outbound` is none of the
 * engine's; every other one is.
 * @throws BadRequest when the request wants more than the configuration allows.
 */
export function networkFor(configured: string, requested: NetworkMode | undefined): string {
  if (requested === undefined || requested === configured) return configured;
  if (requested === "none") return requested;
  // Tighter than the host's own.
  if (requested === "outbound" && configured === "host") return requested;
  const way =
    requested === "outbound" && configured !== "none"
      ? "; networks of the engine close no address: leave network out for that one, or set it to outbound"
      : "";
  throw new BadRequest(
    `network ${requested} is more than this service allows (providers.docker.network_mode is ${configured}${way})`,
  );
}

/** What the engine is told. */
export function engineNetwork(network: string): Record<string, unknown> {
  if (network !== "outbound") return { NetworkMode: network };
  // Without a search list of its own the engine writes the host's.
  return { NetworkMode: "none", Dns: [outboundResolver], DnsSearch: ["."] };
}
