import { pbkdf2Sync } from 'node:crypto';
import { expect, test } from 'vitest';
import { createVerifier, matchesVerifier } from './scram.ts';

test('a verifier matches its own password alone', async () => {
  const verifier = await createVerifier('correct horse');
  expect(verifier).toMatch(/^SCRAM-SHA-256\$4096:[\w+/=]{24}\$[\w+/=]{44}:[\w+/=]{44}$/);
  expect(await matchesVerifier('correct horse', verifier)).toBe(true);
  expect(await matchesVerifier('correct hors', verifier)).toBe(false);
  expect(await matchesVerifier('', verifier)).toBe(false);
});

test('a verifier made by Postgres 18 matches', async () => {
  // create role r password 'Ünïcode é pass'; select rolpassword from pg_authid
  const verifier =
    'SCRAM-SHA-256$4096:X7dX7EqQPemtgn2mDGzsKQ==$Y05SyEvM9gxihKOrbvO6fcC3VJgVtJd2XKUAoIhjCNc=:D8biTcbOdc66eEhkff5OTDSruJcevb8F9GmB8qFUssw=';
  expect(await matchesVerifier('Ünïcode é pass', verifier)).toBe(true);
  // Postgres normalises passwords: the composed and the decomposed form are the same.
  expect(await matchesVerifier('Ünïcode é pass'.normalize('NFD'), verifier)).toBe(true);
  expect(await matchesVerifier('Unicode e pass', verifier)).toBe(false);
});

test('what is no verifier, or would take for ever, matches nothing', async () => {
  for (const text of ['', 'md5abc', 'SCRAM-SHA-256$', 'SCRAM-SHA-256$4096:AA==$AA==:', 'plain'])
    expect(await matchesVerifier('', text)).toBe(false);
  const stored = pbkdf2Sync('x', 'salt', 1, 32, 'sha256').toString('base64');
  for (const rounds of ['0', '1000001', '2147483647', '99999999999999999999']) {
    const startedAt = performance.now();
    expect(await matchesVerifier('x', `SCRAM-SHA-256$${rounds}:c2FsdA==$${stored}:${stored}`)).toBe(
      false,
    );
    expect(performance.now() - startedAt).toBeLessThan(100);
  }
});
