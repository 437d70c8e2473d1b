import { createHmac } from "node:crypto";

/**
 * A few digits that tell one key from another, by which nobody finds the key who tries what it may be.
 * @param secret of the installation, which nobody is shown.
 */
export function fingerprint(key: string, secret: Uint8Array): string {
  return createHmac("sha256", secret).update(key).digest("hex").slice(0, 8);
}
