import { Conflict, type RuntimeProvider, type SandboxRow } from "../../ports/index.ts";
import type { LiveSandboxes } from "./live-sandboxes.ts";

/**
 * On a provider that separates its sandboxes from nothing, all of them belong to one owner. The new sandbox is not
 * among `live` yet. @throws Conflict naming the provider.
 */
export function refuseSecondOwner(
  provider: RuntimeProvider,
  row: Pick<SandboxRow, "ownerId">,
  live: LiveSandboxes,
): void {
  if (!provider.capabilities.has("userspace_isolation")) return;
  const other = live.all().some((entry) => entry.provider === provider && entry.row.ownerId !== row.ownerId);
  if (!other) return;
  throw new Conflict(
    `provider "${provider.name}" does not separate sandboxes from each other, and those it runs now belong to ` +
      "another owner; name a provider with isolation, or wait until they are destroyed",
  );
}
