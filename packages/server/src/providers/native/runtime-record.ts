import { type Static, Type } from "typebox";
import { CgroupSpec, IdsSpec } from "../launcher/index.ts";
import { commonRecord } from "../runtime-records/index.ts";

/** runtime.json: what must be known to use or undo a runtime after a restart. */
export const RuntimeRecord = Type.Object({
  ...commonRecord,
  /** The image store keeps what is named here. null: the host's own root. */
  rootfs: Type.Union([Type.String(), Type.Null()]),
  ids: IdsSpec,
  cgroup: Type.Union([CgroupSpec, Type.Null()]),
});
export type RuntimeRecord = Static<typeof RuntimeRecord>;
