import { type Static, Type } from "typebox";
import { commonRecord } from "../runtime-records/index.ts";

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

/** runtime.json: what must be known to use or undo a runtime after a restart. */
export const RuntimeRecord = Type.Object({
  ...commonRecord,
  /** The image store keeps what is named here. null: the host's own root. */
  rootfs: Type.Union([Type.String(), Type.Null()]),
  ids: IdsSpec,
  cgroup: Type.Union([CgroupSpec, Type.Null()]),
});
export type RuntimeRecord = Static<typeof RuntimeRecord>;
