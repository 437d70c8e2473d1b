export { findProgram } from "./find-program.ts";
export {
  closeGroupParents,
  type GroupParents,
  groupSpec,
  instanceName,
  openGroupParents,
} from "./group-parents.ts";
export { KeptNetwork } from "./kept-network.ts";
export { Launcher, LauncherFailure, type LaunchReply } from "./launcher.ts";
export {
  findSlirp,
  type OutboundConfig,
  outboundSettings,
  outboundSpec,
  slirpMissing,
} from "./outbound.ts";
export {
  type AttachSpec,
  CgroupSpec,
  type ClaimSpec,
  type DestroySpec,
  type DetachSpec,
  IdsSpec,
  type LaunchSpec,
  type LendSpec,
  type NameSpec,
  type OutboundSpec,
  type RangeLink,
  type ShiftSpec,
} from "./requests.ts";
