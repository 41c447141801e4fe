import { exportJWK, generateKeyPair, type JSONWebKeySet, SignJWT } from 'jose';
import { beforeAll, expect, test } from 'vitest';
import { createEndUserVerifier } from './end-user-verifier.ts';
import type { ByoJwt } from './store.ts';

type Pair = Awaited<ReturnType<typeof generateKeyPair>>;
let old: Pair;
let fresh: Pair;
beforeAll(async () => {
  [old, fresh] = await Promise.all([
    generateKeyPair('ES256', { extractable: true }),
    generateKeyPair('ES256', { extractable: true }),
  ]);
});

const config: ByoJwt = {
  jwks_url: 'https://issuer.example/jwks',
  audience: 'app',
  issuer: 'https://issuer.example',
  subject_claim: 'sub',
  claims_allowlist: [],
  claims_max_bytes: 4096,
};
const sign = (pair: Pair, kid: string, claims: object = {}, expires = '5m') =>
  new SignJWT({ email: 'a@example.com', ...claims })
    .setProtectedHeader({ alg: 'ES256', kid })
    .setSubject('user-1')
    .setIssuer('https://issuer.example')
    .setAudience('app')
    .setExpirationTime(expires)
    .sign(pair.privateKey);
const jwks = async (pairs: Record<string, Pair>): Promise<JSONWebKeySet> => ({
  keys: await Promise.all(
    Object.entries(pairs).map(async ([kid, { publicKey }]) => ({
      ...(await exportJWK(publicKey)),
      kid,
    })),
  ),
});

function create(changes: Partial<ByoJwt> = {}) {
  const state = { offsetMs: 0, fetches: 0, keys: {} as Record<string, Pair>, down: false };
  const verifier = createEndUserVerifier({
    configOf: async () => ({
      auth_mode: 'byo_jwt',
      byo_jwt: { ...config, ...changes },
      created_at: new Date(),
      updated_at: new Date(),
    }),
    source: {
      async fetch() {
        state.fetches++;
        if (state.down) throw new Error('down');
        return jwks(state.keys);
      },
    },
    clock: { now: () => new Date(Date.now() + state.offsetMs) },
  });
  state.keys = { old };
  return { state, verify: (token: string) => verifier.verify('db_a', token) };
}

test('a good token names its subject; keys are kept', async () => {
  const { state, verify } = create();
  for (let i = 0; i < 3; i++)
    expect(await verify(await sign(old, 'old'))).toMatchObject({
      subject: 'user-1',
      claims: { email: 'a@example.com' },
    });
  expect(state.fetches).toBe(1);
});

test('another key, issuer, audience or time: 401', async () => {
  const { verify } = create();
  const now = Math.floor(Date.now() / 1000);
  for (const token of [
    await sign(fresh, 'old'),
    await sign(old, 'old', {}, '-1m'),
    await new SignJWT({ sub: 'x', aud: 'app', iss: 'other', exp: now + 60 })
      .setProtectedHeader({ alg: 'ES256', kid: 'old' })
      .sign(old.privateKey),
    await new SignJWT({ sub: 'x', aud: 'other', iss: config.issuer!, exp: now + 60 })
      .setProtectedHeader({ alg: 'ES256', kid: 'old' })
      .sign(old.privateKey),
    await new SignJWT({ sub: 'x', aud: 'app', iss: config.issuer! })
      .setProtectedHeader({ alg: 'ES256', kid: 'old' })
      .sign(old.privateKey),
    await new SignJWT({ sub: 'x' })
      .setProtectedHeader({ alg: 'HS256' })
      .sign(new TextEncoder().encode('secret')),
    'not a token',
    '',
  ])
    await expect(verify(token)).rejects.toMatchObject({ status: 401 });
});

test('a new key is found, but unknown ones do not make us fetch without end', async () => {
  const { state, verify } = create();
  await verify(await sign(old, 'old'));
  state.keys = { old, fresh };
  state.offsetMs = 31_000;
  await verify(await sign(fresh, 'fresh'));
  expect(state.fetches).toBe(2);
  for (let i = 0; i < 5; i++)
    await expect(verify(await sign(fresh, 'unknown'))).rejects.toMatchObject({ status: 401 });
  expect(state.fetches).toBe(2);
});

test('an issuer that is down is forgiven while keys are known', async () => {
  const { state, verify } = create();
  await verify(await sign(old, 'old'));
  state.down = true;
  state.offsetMs = 11 * 60_000;
  expect(await verify(await sign(old, 'old', {}, '30m'))).toMatchObject({ subject: 'user-1' });
  const other = create();
  other.state.down = true;
  await expect(other.verify(await sign(old, 'old'))).rejects.toMatchObject({ status: 401 });
});

test('subject claim, allowlist and size', async () => {
  const { verify } = create({ subject_claim: 'uid', claims_allowlist: ['role'] });
  const { subject, claims } = await verify(await sign(old, 'old', { uid: 'u-9', role: 'editor' }));
  expect(subject).toBe('u-9');
  expect(claims).toMatchObject({ uid: 'u-9', role: 'editor', iss: config.issuer });
  expect(claims).not.toHaveProperty('email');
  await expect(verify(await sign(old, 'old'))).rejects.toMatchObject({ status: 401 });
  const small = create({ claims_max_bytes: 60 });
  await expect(small.verify(await sign(old, 'old'))).rejects.toMatchObject({ status: 401 });
});
