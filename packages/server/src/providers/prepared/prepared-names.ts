import { randomBytes } from "node:crypto";
import type { RuntimeId } from "../../ports/index.ts";

/** Of directories, control groups, containers and records of those that are nobody's. */
export const preparedPrefix = "prepared-";

export function newPreparedId(): RuntimeId {
  return `${preparedPrefix}${randomBytes(6).toString("hex")}` as RuntimeId;
}

export function isPrepared(runtimeId: string): boolean {
  return runtimeId.startsWith(preparedPrefix);
}
