import { createHash, randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import { createPortableSha256 } from './sha256.ts';

test('the portable SHA-256 agrees with OpenSSL at every length and cut', () => {
  for (let length = 0; length < 300; length++) {
    const bytes = randomBytes(length);
    const cut = Math.floor(length / 3);
    const hash = createPortableSha256();
    hash.update(bytes.subarray(0, cut));
    hash.update(bytes.subarray(cut, 2 * cut));
    hash.update(bytes.subarray(2 * cut));
    expect(hash.digest()).toBe(createHash('sha256').update(bytes).digest('hex'));
  }
});
