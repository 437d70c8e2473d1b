import type { Clock } from "../../ports/clock.ts";

/** Read at each request: they may change while the service runs. */
export interface BucketSettings {
  /** How many tokens come back. */
  readonly requestsPerMinute: number;
  /** How many tokens a bucket holds. */
  readonly burst: number;
  /** How long a bucket that nobody takes from is kept, or until it is full again where that takes longer. */
  readonly bucketTtlMs: number;
}

export interface Verdict {
  readonly allowed: boolean;
  /** Whole tokens that are left. */
  readonly remaining: number;
  /** When there is a token again, whole seconds from now; 0 when there is one. */
  readonly retryAfterS: number;
}

interface Bucket {
  readonly identity: string;
  tokens: number;
  /** When its tokens were counted last, monotonic. */
  atMs: number;
  /** Its neighbours in the order of use: the one used before it, and the one after. */
  before: Bucket | undefined;
  after: Bucket | undefined;
}

/** So many identities at once, whoever thinks them up; about 200 bytes each. */
const defaultMaxBuckets = 100_000;

/**
 * A bucket of tokens per identity, filled anew at a steady rate. Beyond `maxBuckets` the one that was used longest ago is
 * forgotten, and counts as full when it comes back.
 */
export class TokenBuckets {
  readonly #settings: BucketSettings;
  readonly #clock: Pick<Clock, "monotonicMs">;
  readonly #maxBuckets: number;
  readonly #buckets = new Map<string, Bucket>();
  /**
   * The ends of the order of use. It is not the map's own: one identity that is taken out and put in again with each use leaves
   * holes there that it meets itself the next time, 60 µs of them among 100,000.
   */
  #oldest: Bucket | undefined;
  #newest: Bucket | undefined;
  #allowed = 0;
  #limited = 0;
  #evicted = 0;

  constructor(options: {
    settings: BucketSettings;
    clock: Pick<Clock, "monotonicMs">;
    maxBuckets?: number;
  }) {
    this.#settings = options.settings;
    this.#clock = options.clock;
    this.#maxBuckets = options.maxBuckets ?? defaultMaxBuckets;
  }

  get totals(): { active: number; allowed: number; limited: number; evicted: number } {
    return {
      active: this.#buckets.size,
      allowed: this.#allowed,
      limited: this.#limited,
      evicted: this.#evicted,
    };
  }

  /** Takes a token when there is one. */
  take(identity: string): Verdict {
    const bucket = this.#filled(identity);
    const allowed = bucket.tokens >= 1;
    if (allowed) {
      bucket.tokens -= 1;
      this.#allowed++;
    } else this.#limited++;
    if (this.#buckets.size > this.#maxBuckets && this.#oldest !== undefined) this.#forget(this.#oldest);
    return this.#verdict(bucket, allowed);
  }

  /** What `take` would say. */
  look(identity: string): Verdict {
    const bucket = this.#buckets.get(identity);
    const tokens = bucket === undefined ? this.#settings.burst : this.#tokensIn(bucket);
    return this.#verdict({ tokens }, tokens >= 1);
  }

  /** Forgets the buckets that nobody took from for their time to live, and that are full again: a new one is, too. */
  prune(): void {
    const { bucketTtlMs, burst, requestsPerMinute } = this.#settings;
    const fullAfterMs = (burst / requestsPerMinute) * 60_000;
    const oldestMs = this.#clock.monotonicMs() - Math.max(bucketTtlMs, fullAfterMs);
    for (let bucket = this.#oldest; bucket !== undefined && bucket.atMs <= oldestMs; bucket = this.#oldest)
      this.#forget(bucket);
  }

  #filled(identity: string): Bucket {
    const known = this.#buckets.get(identity);
    const atMs = this.#clock.monotonicMs();
    const { burst } = this.#settings;
    const bucket = known ?? { identity, tokens: burst, atMs, before: undefined, after: undefined };
    if (known === undefined) this.#buckets.set(identity, bucket);
    else {
      bucket.tokens = this.#tokensIn(bucket);
      bucket.atMs = atMs;
      this.#unlink(bucket);
    }
    bucket.before = this.#newest;
    if (this.#newest !== undefined) this.#newest.after = bucket;
    this.#newest = bucket;
    this.#oldest ??= bucket;
    return bucket;
  }

  #tokensIn({ tokens, atMs }: Pick<Bucket, "tokens" | "atMs">): number {
    const { requestsPerMinute, burst } = this.#settings;
    const grown = ((this.#clock.monotonicMs() - atMs) / 60_000) * requestsPerMinute;
    return Math.min(burst, tokens + grown);
  }

  #verdict(bucket: Pick<Bucket, "tokens">, allowed: boolean): Verdict {
    const missing = Math.max(0, 1 - bucket.tokens);
    const retryAfterS = Math.ceil((missing / this.#settings.requestsPerMinute) * 60);
    return {
      allowed,
      remaining: Math.floor(bucket.tokens),
      retryAfterS: allowed ? 0 : Math.max(1, retryAfterS),
    };
  }

  #forget(bucket: Bucket): void {
    this.#unlink(bucket);
    this.#buckets.delete(bucket.identity);
    this.#evicted++;
  }

  #unlink(bucket: Bucket): void {
    const { before, after } = bucket;
    if (before === undefined) this.#oldest = after;
    else before.after = after;
    if (after === undefined) this.#newest = before;
    else after.before = before;
    bucket.before = undefined;
    bucket.after = undefined;
  }
}
