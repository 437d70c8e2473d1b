import { randomBytes } from "node:crypto";
import type { ExecId, Ids, RuntimeId, SandboxId } from "../ports/ids.ts";

const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789";

const poolBytes = 4_096;

/** Random bytes in stock: asking the system for each id costs more than the rest of making it. */
function randomSource(): () => number {
  let pool = new Uint8Array(0);
  let next = 0;
  return () => {
    if (next === pool.length) {
      pool = randomBytes(poolBytes);
      next = 0;
    }
    const byte = pool[next] ?? 0;
    // Given out once, then forgotten.
    pool[next] = 0;
    next += 1;
    return byte;
  };
}

const randomByte = randomSource();

/** @returns `length` characters of [a-z0-9], each equally likely. */
function randomText(length: number): string {
  let text = "";
  while (text.length < length) {
    const byte = randomByte();
    if (byte < 252) text += alphabet[byte % 36];
  }
  return text;
}

/** Ids from the system's random source. docs/api/README.md. */
export const randomIds: Ids = {
  sandboxId: () => `sb-${randomText(12)}` as SandboxId,
  runtimeId: () => `rt-${randomText(12)}` as RuntimeId,
  execId: () => `ex-${randomText(16)}` as ExecId,
  secret: (bytes) => randomBytes(bytes).toString("hex"),
};
