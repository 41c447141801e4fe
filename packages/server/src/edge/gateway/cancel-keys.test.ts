import { expect, test } from 'vitest';
import { createCancelKeys } from './cancel-keys.ts';

test('processes of different instances may have one number', () => {
  const keys = createCancelKeys<string>();
  const issued = ['a', 'b', 'c'].map((target) => ({ target, ...keys.issue(42, 0, target) }));
  for (const { secret, target } of issued) expect(keys.find(42, secret)).toBe(target);
  expect(keys.find(43, issued[0]!.secret)).toBeUndefined();
  expect(keys.find(42, Buffer.alloc(32))).toBeUndefined();
  issued[1]!.forget();
  expect(keys.find(42, issued[1]!.secret)).toBeUndefined();
  expect(keys.find(42, issued[2]!.secret)).toBe('c');
  for (const { forget } of issued) forget();
  expect(keys.size).toBe(0);
});
