import { generateKeyPairSync, randomUUID, sign } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type RunningService, startService } from '../support/service.ts';
import { idTokenFor } from '../support/sign-in.ts';

let service: RunningService;
beforeAll(async () => {
  service = await startService({
    flags: ['--registration-burst', '40', '--registrations-per-second', '0.5'],
  });
});
afterAll(() => service?.stop());

const newEmail = () => `${randomUUID()}@example.com`;
const post = (path: string, body: unknown, token?: string) =>
  service.api.call('POST', path, { body, token });

describe('anonymous accounts', () => {
  test('register, me, refresh', async () => {
    const registered = await service.api.call('POST', '/customer/anonymous-register');
    expect(registered.status).toBe(201);
    expect(registered.body).toEqual({
      anonymous_id: expect.stringMatching(/^anon_[a-z0-9]{16,}$/),
      anonymous_secret: expect.any(String),
      token: expect.stringMatching(/^[\w-]+\.[\w-]+\.[\w-]+$/),
      expires_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      is_anonymous: true,
    });
    const days = (Date.parse(registered.body.expires_at) - Date.now()) / 86_400_000;
    expect(days).toBeGreaterThan(89.9);
    const { anonymous_id, anonymous_secret, token } = registered.body;

    const me = await service.api.call('GET', '/customer/me', { token });
    expect(me.status).toBe(200);
    expect(me.body).toMatchObject({
      id: anonymous_id,
      email: null,
      status: 'active',
      is_anonymous: true,
    });

    const refreshed = await post('/customer/anonymous-refresh', { anonymous_id, anonymous_secret });
    expect(refreshed.status).toBe(200);
    expect(Object.keys(refreshed.body).sort()).toEqual(['expires_at', 'token']);
    const again = await service.api.call('GET', '/customer/me', { token: refreshed.body.token });
    expect(again.body.id).toBe(anonymous_id);
  });

  test('401 for a wrong secret or an unknown account', async () => {
    const account = await service.api.register();
    for (const body of [
      { anonymous_id: account.id, anonymous_secret: 'wrong' },
      { anonymous_id: account.id, anonymous_secret: '' },
      { anonymous_id: 'anon_unknown', anonymous_secret: account.secret },
      { anonymous_id: "' or 1=1 --", anonymous_secret: account.secret },
    ])
      expect((await post('/customer/anonymous-refresh', body)).status).toBe(401);
  });

  test('401 for a session token that is tampered with or signed by another', async () => {
    const { token } = await service.api.register();
    const [header, payload, signature] = token.split('.') as [string, string, string];
    const claims = JSON.parse(Buffer.from(payload, 'base64url').toString());
    const encode = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url');
    const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
    const forgedInput = `${header}.${payload}`;
    const forged = sign('sha256', Buffer.from(forgedInput), {
      key: privateKey,
      dsaEncoding: 'ieee-p1363',
    });
    for (const bad of [
      `${header}.${encode({ ...claims, exp: claims.exp + 1 })}.${signature}`,
      `${encode({ alg: 'none' })}.${payload}.`,
      `${forgedInput}.${forged.toString('base64url')}`,
      `${token}x`,
      token.slice(0, -3),
    ])
      expect((await service.api.call('GET', '/customer/me', { token: bad })).status).toBe(401);
  });
});

describe('verified accounts', () => {
  test('claim keeps the account, its tokens and the session', async () => {
    const account = await service.api.register();
    const { token } = (await account.post('/customer/tokens', { name: 'kept' })).body;
    const email = newEmail();
    const claimed = await account.post('/customer/claim', {
      id_token: await idTokenFor(service.baseUrl, email),
    });
    expect(claimed.status).toBe(200);
    expect(claimed.body).toEqual({ id: expect.stringMatching(/^cus_/), email, claimed: true });
    for (const each of [account, account.as(token)]) {
      const me = await each.get('/customer/me');
      expect(me.body).toMatchObject({ id: claimed.body.id, email, is_anonymous: false });
    }
    const again = await account.post('/customer/claim', {
      id_token: await idTokenFor(service.baseUrl, newEmail()),
    });
    expect(again.status).toBe(409);
    expect(again.body.message).toMatch(/adopt/);
  });

  test('409 for an identity that has an account already', async () => {
    const idToken = await idTokenFor(service.baseUrl, newEmail());
    const [first, second] = await Promise.all([service.api.register(), service.api.register()]);
    const statuses = await Promise.all(
      [first, second].map(
        async (a) => (await a.post('/customer/claim', { id_token: idToken })).status,
      ),
    );
    expect(statuses.sort()).toEqual([200, 409]);
  });

  test('sign-in makes the customer once and gives sessions', async () => {
    const email = newEmail();
    const idToken = await idTokenFor(service.baseUrl, email);
    const [first, second] = await Promise.all([
      post('/customer/sessions', { id_token: idToken }),
      post('/customer/sessions', { id_token: idToken }),
    ]);
    expect(first.status).toBe(201);
    expect(second.body.id).toBe(first.body.id);
    expect(first.body).toMatchObject({ email, id: expect.stringMatching(/^cus_/) });
    const me = await service.api.call('GET', '/customer/me', { token: first.body.token });
    expect(me.body).toMatchObject({ id: first.body.id, email, is_anonymous: false });
  });

  test('401 for id_tokens that are garbage, tampered with or of another issuer', async () => {
    const account = await service.api.register();
    const idToken = await idTokenFor(service.baseUrl, newEmail());
    const [header, payload] = idToken.split('.') as [string, string];
    for (const id_token of ['garbage', `${header}.${payload}.AAAA`, account.token, '']) {
      expect((await account.post('/customer/claim', { id_token })).status).toBe(401);
      expect((await post('/customer/sessions', { id_token })).status).toBe(401);
    }
    expect((await account.get('/customer/me')).body.is_anonymous).toBe(true);
  });
});

test('429 with Retry-After for too many registrations from one address', async () => {
  const answers = await Promise.all(
    Array.from({ length: 60 }, () => service.api.call('POST', '/customer/anonymous-register')),
  );
  const refused = answers.filter((answer) => answer.status === 429);
  expect(refused.length).toBeGreaterThan(0);
  for (const answer of refused) {
    expect(Number(answer.headers.get('retry-after'))).toBeGreaterThan(0);
    expect(Object.keys(answer.body)).toEqual(['message']);
  }
});
