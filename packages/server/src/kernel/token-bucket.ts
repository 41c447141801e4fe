import type { Clock } from './clock.ts';

export interface RateLimit {
  burst: number;
  perSecond: number;
}

export interface TokenBuckets {
  /** Takes one token of `key`. Answers 0, or the seconds to wait when there is none. */
  take(key: string, limit?: RateLimit): number;
}

/** One bucket a key; full buckets are forgotten, so memory is bounded by the keys in use. */
export function createTokenBuckets(clock: Clock, defaultLimit: RateLimit): TokenBuckets {
  const buckets = new Map<string, { tokens: number; at: number; limit: RateLimit }>();
  let sweepAt = 0;

  function sweep(now: number): void {
    if (now < sweepAt) return;
    sweepAt = now + 10_000;
    for (const [key, { tokens, at, limit }] of buckets)
      if (tokens + ((now - at) / 1000) * limit.perSecond >= limit.burst) buckets.delete(key);
  }

  return {
    take(key, limit = defaultLimit) {
      const now = clock.now().getTime();
      sweep(now);
      let bucket = buckets.get(key);
      if (!bucket) {
        bucket = { tokens: limit.burst, at: now, limit };
        buckets.set(key, bucket);
      }
      const elapsedMs = Math.max(0, now - bucket.at);
      bucket.tokens = Math.min(limit.burst, bucket.tokens + (elapsedMs / 1000) * limit.perSecond);
      bucket.at = now;
      if (bucket.tokens >= 1) {
        bucket.tokens -= 1;
        return 0;
      }
      return Math.max(1, Math.ceil((1 - bucket.tokens) / limit.perSecond));
    },
  };
}
