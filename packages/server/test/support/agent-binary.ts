import { fileURLToPath } from "node:url";

/** The checkout's root. */
export const projectRoot = fileURLToPath(new URL("../../../..", import.meta.url)).replace(/\/$/, "");

/** Where `scripts/build-agent.mjs` puts its programs; whether they are there is `requirement("agent")`'s business. */
export function agentBinary(name: "alcove-agent" | "alcove-launch"): string {
  return `${projectRoot}/agent/dist/${name}`;
}
