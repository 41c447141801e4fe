import { pino } from 'pino';
import { expect, test } from 'vitest';
import { createReleasers } from './releasers.ts';

const silent = pino({ level: 'silent' });

test('last in, first out; failures and hangs do not stop the others', async () => {
  const order: string[] = [];
  const releasers = createReleasers(silent, 20);
  releasers.push('first', () => order.push('first'));
  releasers.push('fails', () => {
    throw new Error('no');
  });
  releasers.push('hangs', () => new Promise(() => {}));
  releasers.push('last', async () => order.push('last'));
  await Promise.all([releasers.release(), releasers.release()]);
  expect(order).toEqual(['last', 'first']);
});
