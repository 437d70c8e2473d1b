import { randomBytes } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { DomainError } from "../../ports/errors.ts";

/**
 * Marks what has been through this service in `Via`, so that a program that passes requests on, from a sandbox on the
 * machine's own network, cannot send one round for ever.
 */
class LoopGuard {
  readonly name = `alcove-${randomBytes(6).toString("hex")}`;

  /** @throws DomainError `bad_gateway` for a request that was here before. */
  check(request: IncomingMessage): void {
    if (String(request.headers.via ?? "").includes(this.name))
      throw new DomainError("bad_gateway", "this port leads back to the service itself");
  }
}

export const loopGuard = new LoopGuard();
