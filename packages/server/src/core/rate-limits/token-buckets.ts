import type { Clock } from "../../ports/clock.ts";

/** Read at each request: they may change while the service runs. */
export interface BucketSettings {
  /** How many tokens come back. */
  readonly requestsPerMinute: number;
  /** How many tokens a bucket holds. */
  readonly burst: number;
  /** How long a bucket that nobody takes from is kept. */
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
  tokens: number;
  /** When its tokens were counted last, monotonic. */
  atMs: number;
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
  /** The one used longest ago first. */
  readonly #buckets = new Map<string, Bucket>();
  /**
   * Where the oldest stands: what comes before was deleted. A new walk would begin with the holes that those have left,
   * thousands of them where many are forgotten.
   */
  #oldest = this.#buckets.keys();
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
    this.#buckets.delete(identity);
    this.#buckets.set(identity, bucket);
    const allowed = bucket.tokens >= 1;
    if (allowed) {
      bucket.tokens -= 1;
      this.#allowed++;
    } else this.#limited++;
    if (this.#buckets.size > this.#maxBuckets) this.#forgetOldest();
    return this.#verdict(bucket, allowed);
  }

  /** What `take` would say. */
  look(identity: string): Verdict {
    const bucket = this.#buckets.get(identity);
    const tokens = bucket === undefined ? this.#settings.burst : this.#tokensIn(bucket);
    return this.#verdict({ tokens }, tokens >= 1);
  }

  /** Forgets the buckets that nobody took from for their time to live. */
  prune(): void {
    const oldestMs = this.#clock.monotonicMs() - this.#settings.bucketTtlMs;
    for (const [identity, bucket] of this.#buckets) {
      if (bucket.atMs > oldestMs) return;
      this.#buckets.delete(identity);
      this.#evicted++;
    }
  }

  #filled(identity: string): Bucket {
    const bucket = this.#buckets.get(identity);
    if (bucket === undefined) return { tokens: this.#settings.burst, atMs: this.#clock.monotonicMs() };
    bucket.tokens = this.#tokensIn(bucket);
    bucket.atMs = this.#clock.monotonicMs();
    return bucket;
  }

  #tokensIn({ tokens, atMs }: Bucket): number {
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

  #forgetOldest(): void {
    let next = this.#oldest.next();
    if (next.done === true) {
      // It has met the end once, and stays there.
      this.#oldest = this.#buckets.keys();
      next = this.#oldest.next();
    }
    if (next.done === true) return;
    this.#buckets.delete(next.value);
    this.#evicted++;
  }
}
