import { randomBytes } from "node:crypto";
import type { ExecId, Ids, RuntimeId, SandboxId } from "../ports/ids.ts";

const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789";

/** @returns `length` characters of [a-z0-9], each equally likely. */
function randomText(length: number): string {
  let text = "";
  while (text.length < length) {
    for (const byte of randomBytes(length * 2)) {
      if (byte < 252 && text.length < length) text += alphabet[byte % 36];
    }
  }
  return text;
}

/** Ids from the system's random source. DESIGN §5, Ids. */
export const randomIds: Ids = {
  sandboxId: () => `sb-${randomText(12)}` as SandboxId,
  runtimeId: () => `rt-${randomText(12)}` as RuntimeId,
  execId: () => `ex-${randomText(16)}` as ExecId,
  secret: (bytes) => randomBytes(bytes).toString("hex"),
};
