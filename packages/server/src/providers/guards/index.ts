export { DiskGuard } from "./disk-guard.ts";
export { type DiskSpace, diskUsage, spaceOf } from "./disk-space.ts";
export { RepeatedLook } from "./repeated-look.ts";
export { logStop } from "./stop-log.ts";
