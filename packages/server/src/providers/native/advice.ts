import { readFile } from "node:fs/promises";
import { isMomentary, isOutOfDescriptors, moreDescriptors } from "../../platform/momentary.ts";
import { ProviderError, StorageFull, Unavailable } from "../../ports/index.ts";
import { LauncherFailure } from "../launcher/index.ts";

const roomAdvice = "the disk of data_dir is full, or its inodes are used up: free space below data_dir";

/** What failed, why that usually is, and what to do about it. */
export async function adviceFor(error: unknown): Promise<string> {
  const message = error instanceof Error ? error.message : String(error);
  if (isOutOfDescriptors(error)) return `${message}; ${moreDescriptors}`;
  if (!(error instanceof LauncherFailure))
    return lackedRoom(error) && !(error instanceof StorageFull) ? `${message}; ${roomAdvice}` : message;
  if (error.died) return `${message}; the next request starts it again`;
  // The launcher says itself why.
  if (error.unanswered && error.step === "request") return `native: ${message}; try again`;
  if (isMomentary(error))
    return `${message}; it may be at the next attempt, once there is memory, or room for a process`;
  if (error.unanswered) return `${message}: the machine has no time for it, or a disk hangs; try again`;
  const way = lackedRoom(error) ? roomAdvice : await wayOut(error.step, error.errno);
  return `native sandboxes fail at step ${error.step}: ${message}${way === undefined ? "" : `; ${way}`}`;
}

/** What the caller of a launch is told: whether something is wrong with this machine, or asking again may help. */
export async function toldFailure(error: unknown): Promise<unknown> {
  if (error instanceof StorageFull) return error;
  if (lackedRoom(error)) return new StorageFull(await adviceFor(error), { cause: error });
  const advice = await adviceFor(error);
  if (isMomentary(error))
    return new Unavailable(`native sandboxes cannot be made now: ${advice}`, {
      cause: error,
      retryAfterS: 5,
    });
  if (!(error instanceof LauncherFailure)) return error;
  return error.unanswered
    ? new Unavailable(advice, { cause: error, retryAfterS: 5 })
    : new ProviderError(advice, { cause: error });
}

/** Whether a launch, or what is needed for one, found no room on the disk of `data_dir`: that passes, and is no refusal of the machine. */
export function lackedRoom(error: unknown): boolean {
  if (error instanceof StorageFull) return true;
  // Other steps end so at limits of the kernel: of namespaces, groups, mounts.
  if (error instanceof LauncherFailure)
    return writingSteps.has(error.step) && error.errno !== undefined && fullErrnos.has(error.errno);
  return error instanceof Error && "code" in error && (error.code === "ENOSPC" || error.code === "EDQUOT");
}

const writingSteps: ReadonlySet<string> = new Set([
  "directory",
  "socket",
  "disk",
  "overlay",
  "copy",
  "record",
  "files",
]);
/** ENOSPC, EDQUOT. */
const fullErrnos: ReadonlySet<number> = new Set([28, 122]);
const permissionErrnos = [1, 13];
const errnoMissing = 2;
const errnoBusy = 16;
const errnoInvalid = 22;

async function wayOut(step: string, errno: number | undefined): Promise<string | undefined> {
  switch (step) {
    case "clone":
      return namespaceAdvice(errno);
    case "id_map":
      return (
        (await apparmorAdvice()) ??
        "the id range is refused: check /etc/subuid and /etc/subgid, and that newuidmap is setuid root"
      );
    case "idmap":
      return "idmapped mounts need Linux 5.12 and a file system that supports them; put data_dir on ext4, xfs or btrfs";
    case "overlay":
      return "overlayfs is missing or refused (modprobe overlay; below another overlay use a data_dir on a real disk)";
    case "disk":
      return "loop devices are refused; providers.native.disk_mb: 0 does without a limit for each sandbox's disk";
    case "proc":
      return "a new /proc is refused, as in containers that mask theirs: run the service outside of one, or unmask /proc";
    case "root":
      return "the root cannot be changed, as inside a chroot or an initramfs: run the service from a mounted root";
    case "cgroup":
      // There is something in it: a process that ends slowly, or a group that somebody else made there.
      if (errno === errnoBusy)
        return "what is in that control group does not end, or is another program's: see its cgroup.procs and the groups in it";
      if (errno === errnoInvalid) return "the group above the sandboxes' may allow less: see its limits";
      return "cgroups are refused; run the service as root or under systemd with Delegate=yes";
    case "network":
      return networkAdvice(errno);
    case "descriptors":
      return errno === 22 || errno === 24
        ? "the service may have too few files open: raise LimitNOFILE= in its unit, or ulimit -n"
        : undefined;
    case "exec":
      return errno === 13
        ? "the agent may not be executed where it lies: is data_dir mounted noexec? Remount it with exec, or put data_dir elsewhere"
        : undefined;
    case "seccomp":
      return "the kernel lacks CONFIG_SECCOMP_FILTER";
    case "serve":
      return '"node scripts/build-agent.mjs" builds the launcher';
    default:
      return undefined;
  }
}

function networkAdvice(errno: number | undefined): string {
  if (errno === errnoMissing) return "the kernel lacks /dev/net/tun: modprobe tun";
  if (errno !== undefined && permissionErrnos.includes(errno))
    return "the service's user may not open /dev/net/tun: chmod 0666 /dev/net/tun, as distributions have it";
  return "slirp4netns 1.2.0 or newer has to be installed and able to run";
}

async function namespaceAdvice(errno: number | undefined): Promise<string> {
  const apparmor = await apparmorAdvice();
  if (apparmor !== undefined) return apparmor;
  if ((await setting("kernel/unprivileged_userns_clone")) === "0")
    return "user namespaces are switched off for users: sysctl kernel.unprivileged_userns_clone=1";
  if ((await setting("user/max_user_namespaces")) === "0")
    return "user namespaces are switched off: sysctl user.max_user_namespaces=15000";
  if (errno !== undefined && permissionErrnos.includes(errno))
    return "new namespaces are refused: by a chroot around the service, or a container without CAP_SYS_ADMIN or with a seccomp profile";
  return "the kernel lacks one of the namespaces user, mnt, pid, net, ipc, uts, cgroup";
}

async function apparmorAdvice(): Promise<string | undefined> {
  if ((await setting("kernel/apparmor_restrict_unprivileged_userns")) !== "1" || process.getuid?.() === 0)
    return undefined;
  return "AppArmor refuses user namespaces to users: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run the service as root";
}

/** @returns undefined on kernels without the setting. */
async function setting(name: string): Promise<string | undefined> {
  try {
    return (await readFile(`/proc/sys/${name}`, "utf8")).trim();
  } catch (error) {
    if (error instanceof Error && "code" in error) return undefined;
    throw error;
  }
}
