/**
 * Of /proc, beside what engines hide: it tells of the machine, and readers of some of it hold what everybody on the
 * machine waits for. Root inside is the machine's root where the engine maps no ids, and may open what only root may.
 */
const hiddenProc = [
  ...["bootconfig", "buddyinfo", "bus", "cmdline", "config.gz", "consoles", "crypto", "diskstats", "dma"],
  ...["driver", "dynamic_debug", "execdomains", "fb", "fs", "iomem", "ioports", "irq", "kallsyms"],
  ...["key-users", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "lock_stat", "lockdep"],
  ...["lockdep_chains", "lockdep_stats", "locks", "mdstat", "misc", "modules", "mtrr", "pagetypeinfo"],
  ...["partitions", "pressure", "schedstat", "slabinfo", "softirqs", "swaps", "version_signature"],
  ...["vmallocinfo", "xen", "zoneinfo"],
];

/** What engines hide by themselves; a list of one's own takes the place of theirs. */
const hiddenByEngines = [
  ...["acpi", "asound", "interrupts", "kcore", "keys", "latency_stats", "sched_debug", "scsi"],
  ...["timer_list", "timer_stats"],
];

/** Of /sys/fs, each by its name: cgroup, which programs read, lies beside them. */
const hiddenFileSystems = [
  ...["bcachefs", "btrfs", "cifs", "ecryptfs", "erofs", "ext4", "f2fs", "fuse", "gfs2", "nfs", "nilfs2"],
  ...["ntfs3", "ocfs2", "orangefs", "ubifs", "virtiofs", "xfs", "zonefs"],
];

/** As engines have them. */
export const readOnlyPaths = ["bus", "fs", "irq", "sys", "sysrq-trigger"].map((name) => `/proc/${name}`);

/** What a container sees nothing of. @param processors those of the engine's machine. */
export function hiddenPaths(processors: number): string[] {
  return [
    ...[...hiddenByEngines, ...hiddenProc].map((name) => `/proc/${name}`),
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    // Engines hide these too: how hot a processor is tells what others compute.
    ...Array.from(
      { length: processors },
      (_, number) => `/sys/devices/system/cpu/cpu${number}/thermal_throttle`,
    ),
    ...hiddenFileSystems.map((name) => `/sys/fs/${name}`),
    "/sys/kernel/irq",
    "/sys/kernel/slab",
  ];
}
