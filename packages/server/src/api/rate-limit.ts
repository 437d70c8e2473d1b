import type { FastifyReply, FastifyRequest } from "fastify";
import type { KeyRing } from "../core/keys/key-ring.ts";
import { anybody, localUser, type Principal } from "../core/keys/principal.ts";
import { RateLimited, type RateLimits } from "../core/rate-limits/rate-limits.ts";
import type { Verdict } from "../core/rate-limits/token-buckets.ts";
import { DomainError } from "../ports/errors.ts";
import { addressOf } from "./address.ts";
import { offeredKeys } from "./auth.ts";

/** The limits as HTTP tells them. docs/api/authentication.md, Rate limits. */
export class RequestLimit {
  readonly #limits: RateLimits;
  readonly #keys: Pick<KeyRing, "nameOf">;

  constructor(options: { limits: RateLimits; keys: Pick<KeyRing, "nameOf"> }) {
    this.#limits = options.limits;
    this.#keys = options.keys;
  }

  /**
   * Lets a request in by its key, but not from an address that guesses.
   * @param authenticate @throws DomainError `unauthorized` for keys that are not accepted.
   * @throws RateLimited, and what `authenticate` throws.
   */
  letIn(request: FastifyRequest, reply: FastifyReply, authenticate: () => Principal): Principal {
    return this.#telling(request, reply, () => {
      let principal: Principal;
      try {
        principal = authenticate();
      } catch (error) {
        if (error instanceof DomainError && error.code === "unauthorized")
          this.#limits.checkKey(addressOf(request), undefined);
        throw error;
      }
      this.#limits.checkKey(addressOf(request), principal.name);
      this.#checkBeside(request, principal);
      return principal;
    });
  }

  /** Counts a request of somebody who was let in. @throws RateLimited */
  count(request: FastifyRequest, reply: FastifyReply): void {
    this.#telling(request, reply, () => {
      const verdict = this.#limits.count(callerOf(request));
      if (verdict !== undefined) this.#tell(reply, verdict);
    });
  }

  /** Counts a request that nobody can read, among those without an accepted key. @returns why it is beyond the limit. */
  refusal(address: string, reply: FastifyReply): RateLimited | undefined {
    try {
      this.#limits.checkKey(address, undefined);
      return undefined;
    } catch (error) {
      if (!(error instanceof RateLimited)) throw error;
      this.#tell(reply, error.verdict);
      return error;
    }
  }

  /** Whether one is accepted shows in what the request may do: those beside the key that lets it in are guesses too. */
  #checkBeside(request: FastifyRequest, principal: Principal): void {
    const offered = offeredKeys(request.headers);
    if (offered.length < 2) return;
    for (const value of offered) {
      const key = this.#keys.nameOf(value);
      if (key !== principal.name)
        this.#limits.checkOffered(addressOf(request), { value, key, to: "service" });
    }
  }

  #telling<T>(request: FastifyRequest, reply: FastifyReply, check: () => T): T {
    try {
      return check();
    } catch (error) {
      if (error instanceof RateLimited) {
        this.#tell(reply, error.verdict);
        // A record for each would let anybody push out those of others.
        request.audit = null;
      }
      throw error;
    }
  }

  #tell(reply: FastifyReply, verdict: Verdict): void {
    reply.header("x-ratelimit-limit", this.#limits.burst);
    reply.header("x-ratelimit-remaining", verdict.remaining);
  }
}

function callerOf(request: FastifyRequest): Parameters<RateLimits["count"]>[0] {
  const { principal } = request;
  const address = addressOf(request);
  // Who has shown no key can name a new owner with every request.
  if (principal === anybody) return { address, owner: undefined, key: undefined };
  const named = request.headers["x-user-id"];
  return {
    address,
    owner: principal.ownerId ?? (typeof named === "string" && named.trim() !== "" ? named.trim() : undefined),
    key: principal === localUser ? offeredKeys(request.headers)[0] : principal.name,
  };
}
