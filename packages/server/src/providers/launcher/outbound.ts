import { findProgram } from "./find-program.ts";
import type { OutboundSpec } from "./requests.ts";

/** What sandboxes with a network reach, and how much of it. */
export interface OutboundConfig {
  networkAllow: readonly string[];
  networkConnections: number;
  networkMbit: number;
}

/** What to say where `findSlirp` finds none. */
export const slirpMissing = "slirp4netns 1.2.0 or newer, which is not installed: apt-get install slirp4netns";

export function findSlirp(): Promise<string | undefined> {
  return findProgram("slirp4netns");
}

export function outboundSpec(config: OutboundConfig, slirp: string): OutboundSpec {
  return {
    slirp,
    allow: config.networkAllow,
    connections: config.networkConnections,
    mbit: config.networkMbit,
  };
}

/** For people: the part of a provider's settings that says it. */
export function outboundSettings(config: OutboundConfig): Record<string, unknown> {
  return {
    network_allow: [...config.networkAllow],
    network_connections: config.networkConnections,
    network_mbit: config.networkMbit,
  };
}
