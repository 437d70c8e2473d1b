import { randomBytes } from "node:crypto";
import type { NetworkMode, RuntimeId, RuntimeSpec, SandboxId } from "../../ports/index.ts";
import { probePrefix } from "./runtime-directories.ts";

/** A check is given 30 s and takes no longer: whoever dies over it leaves a sandbox that ends by itself soon. */
const probeExpiryMs = 40_000;

/** A sandbox that only says whether sandboxes work. */
export function newProbeId(): RuntimeId {
  return `${probePrefix}${randomBytes(6).toString("hex")}` as RuntimeId;
}

export function probeSpec(runtimeId: RuntimeId, network: NetworkMode = "none"): RuntimeSpec {
  return {
    runtimeId,
    sandboxId: "sb-probe" as SandboxId,
    image: "host",
    memoryMb: 64,
    vcpus: 1,
    env: {},
    expiresInMs: probeExpiryMs,
    metadata: {},
    network,
  };
}
