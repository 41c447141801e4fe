import { inspect } from 'node:util';
import { expect, test } from 'vitest';
import { Secret } from './secret.ts';

test('only reveal gives it out', () => {
  const secret = new Secret('hunter2');
  for (const shown of [
    `${secret}`,
    JSON.stringify({ secret }),
    inspect({ secret }),
    String(secret),
  ])
    expect(shown).not.toContain('hunter2');
  expect(secret.reveal()).toBe('hunter2');
});
