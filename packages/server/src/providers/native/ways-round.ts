import { LauncherFailure } from "../launcher/index.ts";

/**
 * How sandboxes are made where the machine refuses the usual way, as containers do. Found out by trying with a sandbox
 * that is thrown away; an ordinary machine needs none of it.
 */
export interface Ways {
  /** Roots are copies owned by the sandbox's ids, because data_dir cannot be mounted with other owners, or, before Linux 5.19, lie below an overlay then. Rooted only. */
  rootCopied: boolean;
  /** The sandbox's /proc is mounted from outside of its user namespace. Rooted only. */
  procOutside: boolean;
  /** What sandboxes write is kept in memory, up to so much, because data_dir cannot lie below an overlay. */
  memoryMb: number | undefined;
}

export const usualWays: Ways = { rootCopied: false, procOutside: false, memoryMb: undefined };

const errnoPermission = 1;
/** In memory for each sandbox, where its disk has no size. */
const defaultMemoryMb = 512;

/** What to try next after a launch failed so; undefined: there is no way round. */
export function wayRound(
  error: unknown,
  options: { ways: Ways; rooted: boolean; limitedDisk: boolean; onOverlay: boolean; diskMb: number },
): { ways: Ways; note: string } | undefined {
  if (!(error instanceof LauncherFailure)) return undefined;
  const { ways, rooted } = options;
  const mb = options.diskMb > 0 ? options.diskMb : defaultMemoryMb;
  const inMemory = `what sandboxes write is kept in memory, up to ${mb} MB each`;
  if (rooted && error.step === "proc" && error.errno === errnoPermission && !ways.procOutside) {
    return {
      ways: { ...ways, procOutside: true },
      note: "the service's /proc has places covered, as in containers: sandboxes get theirs from outside",
    };
  }
  if (rooted && (error.step === "idmap" || error.step === "overlay") && !ways.rootCopied) {
    const memoryMb = options.onOverlay && !options.limitedDisk ? mb : undefined;
    return {
      ways: { ...ways, rootCopied: true, memoryMb },
      note:
        "data_dir cannot be mounted with the sandboxes' owners: each image is copied once, and sandboxes of images share one range of ids" +
        `${memoryMb === undefined ? "" : `; ${inMemory} when they are made from an image`} (way out: a data_dir on ext4, xfs or btrfs, and Linux 5.19 or later)`,
    };
  }
  if (!rooted && error.step === "overlay" && ways.memoryMb === undefined) {
    return {
      ways: { ...ways, memoryMb: mb },
      note: `data_dir cannot lie below an overlay: ${inMemory} (way out: a data_dir on ext4, xfs or btrfs)`,
    };
  }
  return undefined;
}
