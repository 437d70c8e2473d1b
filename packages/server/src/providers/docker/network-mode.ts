import { BadRequest, type NetworkMode } from "../../ports/index.ts";

/**
 * The engine's network for a sandbox: what the operator configured, or none when the request says so.
 * @throws BadRequest when the request wants more than the configuration allows, or the network `outbound`: no network of
 * an engine closes the addresses that are closed there. docs/decisions/native-network.md.
 */
export function networkFor(configured: string, requested: NetworkMode | undefined): string {
  if (configured === "outbound" || requested === "outbound") {
    throw new BadRequest(
      `network outbound is not to be had from docker, whose networks close no address; use provider native, or leave network out for what providers.docker.network_mode names (${configured})`,
    );
  }
  if (requested === undefined) return configured;
  if (requested === "host" && configured !== "host") {
    throw new BadRequest(
      `network host is more than this service allows (providers.docker.network_mode is ${configured})`,
    );
  }
  return requested;
}
