import { hash, randomBytes } from "node:crypto";
import type { LimitReason } from "@alcove/wire";
import type { Config } from "../../config/config.ts";
import type { Clock, Timer } from "../../ports/clock.ts";
import { DomainError } from "../../ports/errors.ts";
import { addressBlock } from "./address-block.ts";
import { Remembered } from "./remembered.ts";
import { type BucketSettings, TokenBuckets, type Verdict } from "./token-buckets.ts";

export interface RateLimitSettings extends BucketSettings {
  readonly enabled: boolean;
  readonly keyBy: Config["rateLimit"]["keyBy"];
  readonly cleanupIntervalMs: number;
}

/** What is known of somebody who asks. */
export interface Caller {
  readonly address: string;
  /** Whom the key is bound to, or whom the request names. */
  readonly owner: string | undefined;
  /** What tells the key from others; undefined without one. */
  readonly key: string | undefined;
}

/** Somebody asks too often. */
export class RateLimited extends DomainError {
  /** For the headers of the answer. */
  readonly verdict: Verdict;

  constructor(message: string, verdict: Verdict) {
    super("resource_limit", message, {
      details: { reason: "rate_limit" satisfies LimitReason },
      retryAfterS: verdict.retryAfterS,
    });
    this.verdict = verdict;
  }
}

/** How many callers that were let in are remembered, and how many values that were offered; twice as many at most. */
const rememberedAtLeast = 10_000;
/** However short `cleanupIntervalMs` is. */
const shortestPruneMs = 1_000;

/**
 * Bounds how often somebody may ask, and how often an address may offer keys that are not accepted. Who asks is kept as
 * a hash with a salt of this process. Settings are read at each request. docs/api/authentication.md, Rate limits.
 */
export class RateLimits implements Disposable {
  readonly #settings: RateLimitSettings;
  readonly #clock: Clock;
  readonly #callers: TokenBuckets;
  readonly #badKeys: TokenBuckets;
  /** Addresses with the keys they were let in with. */
  readonly #letIn = new Remembered(rememberedAtLeast);
  /** Addresses with values that they have offered where no key was needed. */
  readonly #offered = new Remembered(rememberedAtLeast);
  readonly #salt = randomBytes(16).toString("base64");
  #pruning: Timer;

  constructor(options: { settings: RateLimitSettings; clock: Clock; maxBuckets?: number }) {
    this.#settings = options.settings;
    this.#clock = options.clock;
    this.#callers = new TokenBuckets(options);
    this.#badKeys = new TokenBuckets(options);
    this.#pruning = this.#pruneLater();
  }

  /** The size of a bucket. */
  get burst(): number {
    return this.#settings.burst;
  }

  /** Requests let through and refused, and the buckets of both kinds. */
  get totals(): { active: number; allowed: number; limited: number; evicted: number } {
    const [callers, badKeys] = [this.#callers.totals, this.#badKeys.totals];
    return {
      active: callers.active + badKeys.active,
      allowed: callers.allowed,
      limited: callers.limited + badKeys.limited,
      evicted: callers.evicted + badKeys.evicted,
    };
  }

  /**
   * Bounds guessing: an address that has offered too many keys that are not accepted is refused whatever it offers, but
   * for keys it was let in with before. So a guess that hits looks like one that does not, and who has a key is not shut
   * out by a neighbour behind the same address.
   * @param key what tells the key from others; undefined: it is not accepted.
   * @throws RateLimited
   */
  checkKey(address: string, key: string | undefined): void {
    if (!this.#settings.enabled) return;
    const block = addressBlock(address);
    if (key === undefined) {
      const verdict = this.#badKeys.take(this.#hashed(block));
      if (!verdict.allowed) throw this.#guessing(verdict);
      return;
    }
    const pair = this.#hashed(`${block} ${key}`);
    if (!this.#letIn.has(pair) && !this.#badKeys.look(this.#hashed(block)).allowed) {
      // Counted as what misses is: many may read how many were refused.
      const verdict = this.#badKeys.take(this.#hashed(block));
      if (!verdict.allowed) throw this.#guessing(verdict);
    }
    this.#letIn.use(pair);
  }

  /**
   * Bounds guessing where no key is needed and the answer tells one: beside a key that lets a request in, and in what a program
   * is given. A value that the address has not offered so before counts as a key that is not accepted, also where it is one.
   * @param offered.key what tells it from others; undefined: it is none. One that the address was let in with before does not count.
   * @param offered.to programs have visitors of their own: these count apart, so that neither they nor clients shut out the others.
   * @throws RateLimited
   */
  checkOffered(
    address: string,
    offered: { value: string; key: string | undefined; to: "service" | "program" },
  ): void {
    if (!this.#settings.enabled) return;
    const { value, key, to } = offered;
    const block = addressBlock(address);
    if (key !== undefined && this.#letIn.has(this.#hashed(`${block} ${key}`))) return;
    const pair = this.#hashed(`${block}\n${value}`);
    if (!this.#offered.has(pair)) {
      const verdict = this.#badKeys.take(this.#hashed(to === "service" ? block : `${block} ${to}`));
      if (!verdict.allowed) throw this.#guessing(verdict);
    }
    this.#offered.use(pair);
  }

  /** @returns undefined when nothing is limited. @throws RateLimited */
  count(caller: Caller): Verdict | undefined {
    const { enabled, keyBy, requestsPerMinute, burst } = this.#settings;
    if (!enabled) return undefined;
    const [kind, identity] = identityOf(caller, keyBy);
    const verdict = this.#callers.take(this.#hashed(`${kind} ${identity}`));
    if (verdict.allowed) return verdict;
    throw new RateLimited(
      `too many requests of this ${kind}: the limit is ${requestsPerMinute} a minute and ${burst} at once; try again in ${verdict.retryAfterS} s`,
      verdict,
    );
  }

  [Symbol.dispose](): void {
    this.#pruning.cancel();
  }

  #guessing(verdict: Verdict): RateLimited {
    return new RateLimited(
      `too many requests of this address without a key that is accepted; try again in ${verdict.retryAfterS} s`,
      verdict,
    );
  }

  #hashed(text: string): string {
    return hash("sha256", this.#salt + text, "base64");
  }

  #pruneLater(): Timer {
    return this.#clock.setTimer(Math.max(shortestPruneMs, this.#settings.cleanupIntervalMs), () => {
      this.#callers.prune();
      this.#badKeys.prune();
      this.#pruning = this.#pruneLater();
    });
  }
}

/** The first that is known, in the order that `keyBy` begins. */
function identityOf(caller: Caller, keyBy: RateLimitSettings["keyBy"]): [kind: string, identity: string] {
  if (keyBy === "owner" && caller.owner !== undefined) return ["owner", caller.owner];
  if (keyBy !== "ip" && caller.key !== undefined) return ["key", caller.key];
  return ["address", addressBlock(caller.address)];
}
