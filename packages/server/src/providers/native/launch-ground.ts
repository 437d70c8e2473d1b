import type { RuntimeId } from "../../ports/index.ts";
import type { IdsSpec, LaunchSpec } from "../launcher/index.ts";
import type { Ground } from "./ground.ts";
import { type IdRanges, idsPerSandbox } from "./id-ranges.ts";
import type { ShiftedImages } from "./shifted-images.ts";
import type { Ways } from "./ways-round.ts";

/** What every launch needs, found out and made once. */
export interface LaunchGround extends Ground {
  agent: string;
  ranges: IdRanges;
  ways: Ways;
  /** Set when roots are copied. */
  shifted: ShiftedImages | undefined;
  /** Why it is not known yet what the machine refuses: the disk had no room for a sandbox that tries it. */
  untried?: unknown;
}

/** Takes a range of ids where sandboxes have one of their own. */
export async function idsFor(
  ground: LaunchGround,
  runtimeId: RuntimeId,
  root: LaunchSpec["root"],
): Promise<IdsSpec> {
  if (!ground.rooted) return ground.unprivilegedIds;
  const shared = root.kind === "image" ? ground.shifted?.base : undefined;
  return { kind: "range", base: shared ?? (await ground.ranges.take(runtimeId)), count: idsPerSandbox };
}

export async function rootFor(ground: LaunchGround, root: LaunchSpec["root"]): Promise<LaunchSpec["root"]> {
  if (ground.shifted === undefined) return root;
  if (root.kind === "host") return { ...root, copy: true };
  return { ...root, rootfs: await ground.shifted.of(root.rootfs), shifted: true };
}

export function diskFor({ disks, ways, rooted }: LaunchGround, root: LaunchSpec["root"]): LaunchSpec["disk"] {
  if (disks !== undefined) return { template: disks.template };
  // A copied root of image `host` lies on any file system.
  const needed = ways.memoryMb !== undefined && !(rooted && root.kind === "host");
  return needed ? { tmpfs_mb: ways.memoryMb ?? 0 } : {};
}
