import { randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createSecretbox } from './secretbox.ts';

const [oldKey, newKey] = [randomBytes(32), randomBytes(32)];

test('what is sealed opens, and nothing else does', () => {
  const box = createSecretbox([oldKey]);
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), fc.string(), (text, context) => {
      const plain = text.toWellFormed();
      const sealed = box.seal(plain, context);
      expect(box.open(sealed, context)).toBe(plain);
      expect(() => box.open(sealed, `${context}x`)).toThrow();
    }),
  );
  const sealed = box.seal('secret', 'here');
  expect(sealed.includes('secret')).toBe(false);
  for (let i = 0; i < sealed.length; i++) {
    const tampered = Buffer.from(sealed);
    tampered[i]! ^= 1;
    expect(() => box.open(tampered, 'here')).toThrow();
  }
});

test('keys rotate: the first seals, all open', () => {
  const sealed = createSecretbox([oldKey]).seal('kept', 'x');
  const rotated = createSecretbox([newKey, oldKey]);
  expect(rotated.open(sealed, 'x')).toBe('kept');
  const resealed = rotated.seal('kept', 'x');
  expect(createSecretbox([newKey]).open(resealed, 'x')).toBe('kept');
  expect(() => createSecretbox([newKey]).open(sealed, 'x')).toThrow(/not configured/);
});

test('a key of a wrong length is refused', () => {
  expect(() => createSecretbox([])).toThrow();
  expect(() => createSecretbox([randomBytes(16)])).toThrow(/32 bytes/);
});
