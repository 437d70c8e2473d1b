import { createHash } from "node:crypto";

/** A few digits that tell one key from another, and too few to be told the key by. */
export function fingerprint(key: string): string {
  return createHash("sha256").update(key).digest("hex").slice(0, 8);
}
