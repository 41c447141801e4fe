import { expect, test } from 'vitest';
import { createTokenBuckets } from './token-bucket.ts';

test('a burst, then so many a second, each key on its own', () => {
  let nowMs = 0;
  const buckets = createTokenBuckets({ now: () => new Date(nowMs) }, { burst: 3, perSecond: 2 });
  const take = (key: string) => buckets.take(key);
  expect([take('a'), take('a'), take('a'), take('a')]).toEqual([0, 0, 0, 1]);
  expect(take('b')).toBe(0);
  nowMs += 500;
  expect([take('a'), take('a')]).toEqual([0, 1]);
  nowMs += 60_000;
  expect([take('a'), take('a'), take('a'), take('a')]).toEqual([0, 0, 0, 1]);
});

test('says how long to wait', () => {
  const buckets = createTokenBuckets({ now: () => new Date(0) }, { burst: 1, perSecond: 0.1 });
  buckets.take('a');
  expect(buckets.take('a')).toBe(10);
});
