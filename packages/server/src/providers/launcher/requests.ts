import { type Static, Type } from "typebox";
import type { NetworkMode } from "../../ports/index.ts";

const count = Type.Integer({ minimum: 0 });

/** Which ids of the host the users of a sandbox are. */
export const IdsSpec = Type.Union([
  /** A rooted service: ids `base` and up of the host. */
  Type.Object({ kind: Type.Literal("range"), base: count, count }),
  /** The service's own user is root inside, and nobody else exists. */
  Type.Object({ kind: Type.Literal("single") }),
  /** The same, and a range that /etc/subuid and /etc/subgid grant, through `newuidmap`. */
  Type.Object({ kind: Type.Literal("subids"), uid_start: count, gid_start: count, count }),
]);
export type IdsSpec = Static<typeof IdsSpec>;

export const CgroupSpec = Type.Object({
  version: Type.Union([Type.Literal(1), Type.Literal(2)]),
  dirs: Type.Array(Type.Object({ controller: Type.String(), path: Type.String() })),
});
export type CgroupSpec = Static<typeof CgroupSpec>;

/** What `alcove-launch` takes; its own side is `agent/alcove-launch/src/spec.rs`. Paths are absolute. */
export interface LaunchSpec {
  dir: string;
  /** Becomes runtime.json before anything exists that needs undoing. */
  record: { runtimeId: string; [field: string]: unknown };
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

/** Makes one that was prepared, by what a launch is told, somebody's. */
export interface ClaimSpec {
  /** The directory it was prepared in. */
  prepared: string;
  /** The runtime's own from now on. */
  dir: string;
  /** Takes the place of the one it was prepared with. */
  record: LaunchSpec["record"];
  /** What tells other services of the machine whose its ids are; null where nothing does. */
  range: RangeLink | null;
  /** Memory and processors are those it was prepared for. */
  owned: Pick<LaunchSpec, "hostname" | "limits">;
}

/** A link that is there, and where it is to lead. */
export interface RangeLink {
  link: string;
  target: string;
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

/** Gives a sandbox that runs its network again, or a container its first. */
export interface AttachSpec {
  dir: string;
  ids: IdsSpec;
  /** A container's are its engine's: this one is then for its network alone. */
  cgroup: CgroupSpec | null;
  outbound: OutboundSpec;
  /** 64 hexadecimal digits and the number of its first process, as its engine tells them. */
  container?: { id: string; pid: number };
}

/** Ends what carries the network of a container. */
export interface DetachSpec {
  dir: string;
  cgroup: CgroupSpec | null;
}

/** Gives a container that runs its host name. */
export interface NameSpec {
  container: NonNullable<AttachSpec["container"]>;
  hostname: string;
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
