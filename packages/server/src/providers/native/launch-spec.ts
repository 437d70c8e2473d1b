import type { NetworkMode } from "../../ports/index.ts";
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
  network: NetworkMode;
  /** Set in network mode `outbound`. */
  outbound?: OutboundSpec;
  cgroup: CgroupSpec | null;
  limits: { memory_mb: number; vcpus: number; pids: number; exec_group: boolean };
  added_caps: readonly string[];
  disk: { tmpfs_mb?: number; template?: string };
  proc_outside: boolean;
}

/** How a sandbox gets out. */
export interface OutboundSpec {
  /** Path of slirp4netns. */
  slirp: string;
  /** Networks that are open although they belong to those that are closed. */
  allow: readonly string[];
  connections: number;
  /** Megabits a second in each direction; 0: unlimited. */
  mbit: number;
}

/** Gives a sandbox that runs its network again. */
export interface AttachSpec {
  dir: string;
  ids: IdsSpec;
  cgroup: CgroupSpec | null;
  outbound: OutboundSpec;
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
