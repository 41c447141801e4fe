import { expect, test } from 'vitest';
import { LoginError } from '../../kernel/login.ts';
import { createFailedLogins } from './failed-logins.ts';

const wrong = () => Promise.reject(new LoginError('wrong_secret', 'wrong'));
const right = async () => 'in';

function create() {
  let nowMs = 1_000_000;
  const failures = createFailedLogins({ now: () => new Date(nowMs) }, { burst: 3, perSecond: 0.5 });
  return {
    attempt: (check: () => Promise<unknown>, address = '10.0.0.1', database = 'db_a') =>
      failures.attempt(database, address, check).catch((error: LoginError) => error.reason),
    wait: (ms: number) => {
      nowMs += ms;
    },
  };
}

test('after the burst nobody gets in from there until the count has run down', async () => {
  const { attempt, wait } = create();
  for (let i = 0; i < 3; i++) expect(await attempt(wrong)).toBe('wrong_secret');
  expect(await attempt(right)).toBe('too_many_failures');
  expect(await attempt(right, '10.0.0.2')).toBe('in');
  expect(await attempt(right, '10.0.0.1', 'db_b')).toBe('in');
  wait(1_900);
  expect(await attempt(right)).toBe('too_many_failures');
  wait(200);
  expect(await attempt(right)).toBe('in');
  expect(await attempt(wrong)).toBe('wrong_secret');
  expect(await attempt(right)).toBe('too_many_failures');
});

test('only wrong secrets count', async () => {
  const { attempt } = create();
  const down = () => Promise.reject(new LoginError('unavailable', 'down'));
  for (let i = 0; i < 10; i++) expect(await attempt(down)).toBe('unavailable');
  for (let i = 0; i < 10; i++) expect(await attempt(right)).toBe('in');
});

test('attempts begun together do not outrun the count', async () => {
  const { attempt } = create();
  const outcomes = await Promise.all(Array.from({ length: 200 }, () => attempt(wrong)));
  expect(outcomes.filter((outcome) => outcome === 'wrong_secret').length).toBeLessThanOrEqual(10);
});

test('many right logins at once all get in', async () => {
  const { attempt } = create();
  const outcomes = await Promise.all(Array.from({ length: 200 }, () => attempt(right)));
  expect(outcomes.every((outcome) => outcome === 'in')).toBe(true);
});

test('an IPv6 network counts as one address', async () => {
  const { attempt } = create();
  for (const address of ['2001:db8::1', '2001:db8:0:0:ffff::2', '2001:db8::3:4'])
    expect(await attempt(wrong, address)).toBe('wrong_secret');
  expect(await attempt(right, '2001:db8::5')).toBe('too_many_failures');
  expect(await attempt(right, '2001:db8:0:1::5')).toBe('in');
});
