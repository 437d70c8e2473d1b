import type { CgroupSpec, IdsSpec, RuntimeRecord } from "./runtime-record.ts";

export type { CgroupSpec, IdsSpec, RuntimeRecord };

/** What `alcove-launch` takes; its own side is `agent/alcove-launch/src/spec.rs`. Paths are absolute. */
export interface LaunchSpec {
  dir: string;
  /** Becomes runtime.json before anything exists that needs undoing. */
  record: RuntimeRecord;
  agent: string;
  root:
    | { kind: "host"; skeleton: string; copy?: boolean }
    | { kind: "image"; rootfs: string; shifted?: boolean };
  ids: IdsSpec;
  hostname: string;
  network: "none" | "host";
  cgroup: CgroupSpec | null;
  limits: { memory_mb: number; vcpus: number; pids: number; exec_group: boolean };
  added_caps: readonly string[];
  disk: { tmpfs_mb?: number; template?: string };
  proc_outside: boolean;
}

/** Hands a command's own control group to the agent; paths are of its files. */
export interface LendSpec {
  /** The runtime's. */
  dir: string;
  token: string;
  exec_id: string;
  join: string[];
  kills: string[];
  met: string[];
}

/** A copy of an image's root file system that belongs to a range of ids; `to` appears when it is complete. */
export interface ShiftSpec {
  from: string;
  to: string;
  base: number;
  count: number;
}

export interface DestroySpec {
  dir: string;
  trash: string;
  cgroup: CgroupSpec | null;
  ids: IdsSpec;
}
