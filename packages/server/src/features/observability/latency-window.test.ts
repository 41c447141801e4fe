import fc from 'fast-check';
import { expect, test } from 'vitest';
import { LatencyWindow } from './latency-window.ts';

test('percentiles are right within 2 %, averages and maxima exactly', () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 0, max: 100_000_000 }), { minLength: 1, maxLength: 500 }),
      (micros) => {
        const window = new LatencyWindow();
        for (const each of micros) window.record(1_000, each / 1000, false);
        const sorted = micros.toSorted((a, b) => a - b);
        const exact = sorted[Math.ceil(micros.length * 0.99) - 1]! / 1000;
        const summary = window.summarize(1_000);
        expect(summary.count).toBe(micros.length);
        expect(summary.maxMs).toBeCloseTo(sorted.at(-1)! / 1000, 3);
        expect(summary.averageMs).toBeCloseTo(
          micros.reduce((sum, each) => sum + each, 0) / micros.length / 1000,
          3,
        );
        expect(Math.abs(summary.p99Ms - exact)).toBeLessThanOrEqual(exact * 0.02 + 0.001);
      },
    ),
  );
});

test('what is older than a minute is gone', () => {
  const window = new LatencyWindow();
  for (let second = 0; second < 100; second++) window.record(second * 1000, 5, second % 2 === 0);
  const { count, errors } = window.summarize(99_000);
  expect(count).toBeGreaterThanOrEqual(58);
  expect(count).toBeLessThanOrEqual(60);
  expect(errors).toBe(count / 2);
  expect(window.summarize(200_000).count).toBe(0);
});

test('two windows become one', () => {
  const one = new LatencyWindow();
  const two = new LatencyWindow();
  for (let n = 0; n < 50; n++) one.record(n * 100, 1, false);
  for (let n = 0; n < 50; n++) two.record(2_000 + n * 100, 100, true);
  one.absorb(two);
  expect(one.summarize(8_000)).toMatchObject({ count: 100, errors: 50, maxMs: 100 });
  expect(one.lastSeenMs).toBe(6_900);
});
