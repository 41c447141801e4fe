import type { Access } from '@coppice/contract';
import { describe, expect, test } from 'vitest';
import { authorize, type Principal } from './principal.ts';

const holder = (scope: Principal['scope']): Principal => ({
  accountKey: '1',
  customerId: 'cus_x',
  isAnonymous: false,
  email: null,
  customerSince: new Date(0),
  credentialId: 'tok_x',
  scope,
});
const full = holder(null);
const rw = holder(new Map([['db_a', 'rw']]));
const ro = holder(new Map([['db_a', 'ro']]));

const may = (principal: Principal, access: Access, on?: { databaseId?: string; role?: string }) => {
  try {
    authorize(principal, access, on);
    return true;
  } catch (error) {
    expect(error).toMatchObject({ status: 403 });
    return false;
  }
};

describe('what a principal may do with a database', () => {
  test.each([
    ['read', true, true, true],
    ['sql', true, true, true],
    ['write', true, true, false],
    ['connect', true, true, false],
    ['account', true, false, false],
  ] as const)('%s: full %s, rw %s, ro %s', (access, ...expected) => {
    expect([full, rw, ro].map((p) => may(p, access, { databaseId: 'db_a' }))).toEqual(expected);
  });

  test('a read-only token may connect as readonly', () => {
    expect(may(ro, 'connect', { databaseId: 'db_a', role: 'readonly' })).toBe(true);
    expect(may(ro, 'connect', { databaseId: 'db_a', role: 'admin' })).toBe(false);
  });

  test('nothing outside its scope', () => {
    for (const access of ['read', 'sql', 'write', 'connect', 'account'] as const)
      for (const principal of [rw, ro])
        expect(may(principal, access, { databaseId: 'db_b' })).toBe(false);
  });
});

test('what concerns the account needs a credential without scopes', () => {
  expect([full, rw, ro].map((p) => may(p, 'account'))).toEqual([true, false, false]);
  expect([full, rw, ro].map((p) => may(p, 'read'))).toEqual([true, true, true]);
  expect([full, rw, ro].map((p) => may(p, 'self'))).toEqual([true, true, true]);
});
