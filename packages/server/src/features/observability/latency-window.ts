// Durations of the last 60 s: counts, sum, maximum and an HDR-style histogram, in slots of 2 s that
// fall out of the window one by one. A histogram has 64 buckets an octave (values are right within
// 1.6 %) and stores only the range it has seen, so that a steady query costs a few hundred bytes.

export const windowMs = 60_000;
const slotMs = 2_000;
const slotCount = windowMs / slotMs;

const subBits = 6;
const subBuckets = 1 << subBits;

function bucketOf(micros: number): number {
  if (micros < subBuckets) return micros;
  const shift = 31 - Math.clz32(micros) - subBits;
  return shift * subBuckets + (micros >>> shift);
}

/** The middle of a bucket. */
function microsOf(bucket: number): number {
  if (bucket < 2 * subBuckets) return bucket;
  const shift = Math.floor(bucket / subBuckets) - 1;
  const sub = (bucket % subBuckets) + subBuckets;
  return (sub + 0.5) * 2 ** shift;
}

class Slot {
  readonly number: number;
  count = 0;
  errors = 0;
  sumMicros = 0;
  maxMicros = 0;
  first = 0;
  counts = new Uint32Array(0);

  constructor(number: number) {
    this.number = number;
  }

  add(micros: number, failed: boolean): void {
    this.count++;
    if (failed) this.errors++;
    this.sumMicros += micros;
    if (micros > this.maxMicros) this.maxMicros = micros;
    const bucket = bucketOf(micros);
    this.cover(bucket, bucket);
    this.counts[bucket - this.first]!++;
  }

  /** Makes room for the buckets `low` to `high`. */
  cover(low: number, high: number): void {
    const { first, counts } = this;
    if (counts.length > 0 && low >= first && high < first + counts.length) return;
    const from = counts.length === 0 ? low : Math.min(low, first);
    const to = counts.length === 0 ? high : Math.max(high, first + counts.length - 1);
    const grown = new Uint32Array(Math.max(8, Math.ceil((to - from + 1) / 16) * 16));
    if (counts.length > 0) grown.set(counts, first - from);
    this.first = from;
    this.counts = grown;
  }
}

export interface LatencySummary {
  count: number;
  errors: number;
  averageMs: number;
  p99Ms: number;
  maxMs: number;
}

export class LatencyWindow {
  /** Oldest first. */
  #slots: Slot[] = [];
  lastSeenMs = 0;

  record(nowMs: number, durationMs: number, failed: boolean): void {
    this.lastSeenMs = nowMs;
    const number = Math.floor(nowMs / slotMs);
    let slot = this.#slots.at(-1);
    if (slot?.number !== number) {
      this.#expire(number);
      slot = new Slot(number);
      this.#slots.push(slot);
    }
    slot.add(Math.min(0xffff_ffff, Math.max(0, Math.round(durationMs * 1000))), failed);
  }

  /** Takes over everything another window recorded. */
  absorb(other: LatencyWindow): void {
    this.lastSeenMs = Math.max(this.lastSeenMs, other.lastSeenMs);
    for (const theirs of other.#slots) {
      const mine = this.#slots.find((slot) => slot.number === theirs.number);
      if (!mine) this.#slots.push(theirs);
      else merge(mine, theirs);
    }
    this.#slots.sort((a, b) => a.number - b.number);
  }

  summarize(nowMs: number): LatencySummary {
    this.#expire(Math.floor(nowMs / slotMs));
    const total = new Slot(0);
    for (const slot of this.#slots) merge(total, slot);
    return {
      count: total.count,
      errors: total.errors,
      averageMs: total.count === 0 ? 0 : total.sumMicros / total.count / 1000,
      p99Ms: Math.min(percentile(total, 0.99), total.maxMicros) / 1000,
      maxMs: total.maxMicros / 1000,
    };
  }

  #expire(current: number): void {
    while (this.#slots.length > 0 && this.#slots[0]!.number <= current - slotCount)
      this.#slots.shift();
  }
}

function merge(into: Slot, from: Slot): void {
  into.count += from.count;
  into.errors += from.errors;
  into.sumMicros += from.sumMicros;
  into.maxMicros = Math.max(into.maxMicros, from.maxMicros);
  if (from.counts.length === 0) return;
  into.cover(from.first, from.first + from.counts.length - 1);
  const shift = from.first - into.first;
  for (let index = 0; index < from.counts.length; index++)
    into.counts[index + shift]! += from.counts[index]!;
}

function percentile({ count, first, counts }: Slot, share: number): number {
  let left = Math.ceil(count * share);
  for (let index = 0; index < counts.length; index++) {
    left -= counts[index]!;
    if (left <= 0 && counts[index]! > 0) return microsOf(first + index);
  }
  return 0;
}
