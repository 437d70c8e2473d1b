import { networkModes } from "@alcove/wire";
import { BadRequest, type NetworkMode } from "../../ports/index.ts";

const reach = (mode: NetworkMode) => networkModes.indexOf(mode);

/**
 * The engine's network for a sandbox: what the operator configured, or less when the request says so.
 * @throws BadRequest when the request wants more than the configuration allows.
 */
export function networkFor(configured: string, requested: NetworkMode | undefined): string {
  if (requested === undefined) return configured;
  const allowed: NetworkMode = configured === "none" || configured === "host" ? configured : "outbound";
  if (reach(requested) > reach(allowed)) {
    throw new BadRequest(
      `network ${requested} is more than this service allows (providers.docker.network_mode is ${configured})`,
    );
  }
  if (requested === allowed) return configured;
  return requested === "outbound" ? "bridge" : requested;
}
