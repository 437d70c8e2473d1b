import type { WrittenNote } from "../runtime-records/index.ts";

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

/** A copy of an image's root file system that belongs to a range of ids; `to` appears when it is complete. */
export interface ShiftSpec {
  from: string;
  to: string;
  base: number;
  count: number;
}

export type IdsSpec =
  /** A rooted service: ids `base` and up of the host. */
  | { kind: "range"; base: number; count: number }
  /** The service's own user is root inside, and nobody else exists. */
  | { kind: "single" }
  /** The same, and a range that /etc/subuid and /etc/subgid grant, through `newuidmap`. */
  | { kind: "subids"; uid_start: number; gid_start: number; count: number };

export interface CgroupSpec {
  version: 1 | 2;
  dirs: { controller: string; path: string }[];
}

export interface DestroySpec {
  dir: string;
  trash: string;
  cgroup: CgroupSpec | null;
  ids: IdsSpec;
}

/** runtime.json: what must be known to use or undo a runtime after a restart. */
export interface RuntimeRecord {
  version: 1;
  instanceId: string;
  runtimeId: string;
  sandboxId: string;
  token: string;
  image: string;
  /** The image store keeps what is named here. null: the host's own root. */
  rootfs: string | null;
  ids: IdsSpec;
  cgroup: CgroupSpec | null;
  createdAt: string;
  sandbox?: WrittenNote;
}
