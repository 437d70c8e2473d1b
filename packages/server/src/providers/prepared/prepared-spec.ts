import type { RuntimeId, RuntimeSpec } from "../../ports/index.ts";

/** What one that is nobody's is made by: of all that its owner decides, nothing. */
export function specOfNobody(
  runtimeId: RuntimeId,
  {
    sandboxId,
    image,
    memoryMb,
    vcpus,
    network,
  }: Pick<RuntimeSpec, "sandboxId" | "image" | "memoryMb" | "vcpus" | "network">,
): RuntimeSpec {
  return {
    runtimeId,
    sandboxId,
    image,
    memoryMb,
    vcpus,
    ...(network === undefined ? {} : { network }),
    env: {},
    expiresInMs: null,
    metadata: {},
  };
}
