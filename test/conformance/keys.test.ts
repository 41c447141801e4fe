// Connect, publishable and service keys; connect tokens and fs-connect; auth-config.
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Account, CreatedDatabase } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;
let stranger: Account;
let database: CreatedDatabase;
let path: string;

beforeAll(async () => {
  service = await startService({ flags: ['--key-limit', '5'] });
  [account, stranger] = await Promise.all([service.api.register(), service.api.register()]);
  database = await account.database();
  path = `/customer/databases/${database.id}`;
});
afterAll(() => service?.stop());

const timestamp = expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
const daysOf = (key: { created_at: string; expires_at: string }) =>
  (Date.parse(key.expires_at) - Date.parse(key.created_at)) / 86_400_000;

const kinds = [
  { kind: 'connect-keys', value: 'connect_key', id: 'ck', prefix: 'cop_ck_' },
  { kind: 'publishable-keys', value: 'publishable_key', id: 'pk', prefix: 'cop_pk_' },
  { kind: 'service-keys', value: 'service_key', id: 'sk', prefix: 'cop_sk_' },
];

describe.each(kinds)('$kind', ({ kind, value, id, prefix }) => {
  test('create without a body, list without the value, revoke', async () => {
    const created = await account.post(`${path}/${kind}`);
    expect(created.status).toBe(201);
    expect(created.body.id).toMatch(new RegExp(`^${id}_[a-z0-9]{16,}$`));
    expect(created.body[value]).toMatch(new RegExp(`^${prefix}[a-z0-9]{52,}$`));
    expect(created.body).toMatchObject({ name: '', created_at: timestamp, expires_at: null });

    const listed = await account.get(`${path}/${kind}`);
    expect(listed.status).toBe(200);
    const { [value]: _, ...metadata } = created.body;
    expect(listed.body).toEqual([metadata]);
    expect(listed.text).not.toContain(prefix);

    const gone = await account.delete(`${path}/${kind}/${created.body.id}`);
    expect(gone).toMatchObject({ status: 200, body: { message: expect.any(String) } });
    expect((await account.delete(`${path}/${kind}/${created.body.id}`)).status).toBe(404);
    expect((await account.get(`${path}/${kind}`)).body).toEqual([]);
  });

  test('name and expiry', async () => {
    const { body } = await account.post(`${path}/${kind}`, { name: 'ci', expires_in_days: 1.5 });
    expect(body.name).toBe('ci');
    expect(daysOf(body)).toBeCloseTo(1.5, 6);
    await account.delete(`${path}/${kind}/${body.id}`);
    for (const expires_in_days of [0, -1, '1', 1e9])
      expect((await account.post(`${path}/${kind}`, { expires_in_days })).status).toBe(400);
  });

  test('belongs to one database of one account', async () => {
    const { body } = await account.post(`${path}/${kind}`);
    const beside = await account.database();
    expect(
      (await account.delete(`/customer/databases/${beside.id}/${kind}/${body.id}`)).status,
    ).toBe(404);
    for (const answer of [
      await stranger.post(`${path}/${kind}`),
      await stranger.get(`${path}/${kind}`),
      await stranger.delete(`${path}/${kind}/${body.id}`),
    ])
      expect(answer.status).toBe(404);
    expect((await account.get(`${path}/${kind}`)).body).toHaveLength(1);
    await account.delete(`${path}/${kind}/${body.id}`);
  });

  test('is no credential of the management interface', async () => {
    const { body } = await account.post(`${path}/${kind}`);
    expect((await account.as(body[value]).get('/customer/me')).status).toBe(401);
    await account.delete(`${path}/${kind}/${body.id}`);
  });

  test('quota, also when many are made at once', async () => {
    const answers = await Promise.all(
      Array.from({ length: 12 }, () => account.post(`${path}/${kind}`)),
    );
    const made = answers.filter(({ status }) => status === 201);
    expect(made).toHaveLength(5);
    for (const refused of answers.filter(({ status }) => status !== 201))
      expect(refused).toMatchObject({
        status: 422,
        body: { message: expect.stringContaining('5') },
      });
    expect((await account.get(`${path}/${kind}`)).body).toHaveLength(5);
    await Promise.all(made.map(({ body }) => account.delete(`${path}/${kind}/${body.id}`)));
    const again = await account.post(`${path}/${kind}`);
    expect(again.status).toBe(201);
    await account.delete(`${path}/${kind}/${again.body.id}`);
  });

  test('a read-only token lists and changes nothing', async () => {
    const scope_json = JSON.stringify({ databases: [{ id: database.id, access: 'ro' }] });
    const reader = account.as((await account.post('/customer/tokens', { scope_json })).body.token);
    expect((await reader.get(`${path}/${kind}`)).status).toBe(200);
    expect((await reader.post(`${path}/${kind}`)).status).toBe(403);
    expect((await reader.delete(`${path}/${kind}/x`)).status).toBe(403);
  });
});

test('connect keys have a role and scopes', async () => {
  const { body } = await account.post(`${path}/connect-keys`, {
    role: 'readonly',
    scopes: ['db:connect', 'db:connect', 'custom'],
  });
  expect(body).toMatchObject({ role: 'readonly', scopes: ['db:connect', 'custom'] });
  await account.delete(`${path}/connect-keys/${body.id}`);
  const all = await account.post(`${path}/connect-keys`, { scopes: [] });
  expect(all.body).toMatchObject({ role: 'admin', scopes: ['db:connect', 'fs:read', 'fs:write'] });
  await account.delete(`${path}/connect-keys/${all.body.id}`);
  expect((await account.post(`${path}/connect-keys`, { scopes: 'db:connect' })).status).toBe(400);
  expect((await account.post(`${path}/connect-keys`, { role: 'nobody' })).status).toBe(422);
});

test('publishable keys say what browsers may do', async () => {
  const wanted = {
    name: 'web',
    allowed_origins: ['https://app.example.com', 'http://localhost:3000', '*'],
    exposed_schemas: ['public'],
    exposed_tables: ['public.posts'],
  };
  const { body } = await account.post(`${path}/publishable-keys`, {
    ...wanted,
    rate_limit: { rps: 2.5 },
  });
  expect(body).toMatchObject({ ...wanted, rate_limit: { rps: 2.5, burst: 3 } });
  await account.delete(`${path}/publishable-keys/${body.id}`);
  for (const bad of [
    { allowed_origins: 'https://app.example.com' },
    { rate_limit: { rps: 0 } },
    { rate_limit: 5 },
  ])
    expect((await account.post(`${path}/publishable-keys`, bad)).status).toBe(400);
  for (const origin of ['example.com', 'https://example.com/path', ''])
    expect(
      (await account.post(`${path}/publishable-keys`, { allowed_origins: [origin] })).status,
    ).toBe(422);
});

test('a connect token tells how to connect', async () => {
  const { status, body } = await account.post(`${path}/connect-token`, { role: 'admin' });
  expect(status).toBe(201);
  expect(body).toEqual({
    host: service.gateway.host,
    port: service.gateway.port,
    database: 'postgres',
    user: `${database.id}.admin`,
    token: expect.stringMatching(/^[\w-]+\.[\w-]+\.[\w-]+$/),
    fs_websocket_url: `${service.baseUrl.replace('http', 'ws')}/fs/${database.id}`,
    expires_in_seconds: 600,
    expires_at: timestamp,
    tls: 'not_enforced',
  });
  const leftMs = Date.parse(body.expires_at) - Date.now();
  expect(leftMs).toBeGreaterThan(590_000);
  expect(leftMs).toBeLessThanOrEqual(600_000);
  expect((await account.post(`${path}/connect-token`, { role: 7 })).status).toBe(400);
  expect((await stranger.post(`${path}/connect-token`)).status).toBe(404);
});

test('fs-connect tells how to reach the files', async () => {
  const { status, body } = await account.post(`${path}/fs-connect`);
  expect(status).toBe(200);
  const { connection_string } = database;
  expect(body).toEqual({
    database_id: database.id,
    database_name: database.name,
    admin_user: 'admin',
    admin_password: database.admin_password,
    connection_string,
    fs_websocket_url: `${service.baseUrl.replace('http', 'ws')}/fs/${database.id}`,
    connection_string_with_password: connection_string.replace('@', `:${database.admin_password}@`),
  });
});

describe('auth-config', () => {
  let issuer: Server;
  let base: string;
  /** Path → what it answers. */
  const pages: Record<string, { status?: number; headers?: Record<string, string>; body: string }> =
    {};

  beforeAll(async () => {
    issuer = createServer((request, response) => {
      const page = pages[request.url!];
      if (request.url === '/hangs') return;
      response.writeHead(page?.status ?? (page ? 200 : 404), page?.headers).end(page?.body);
    });
    await new Promise<void>((done) => issuer.listen(0, '127.0.0.1', done));
    base = `http://127.0.0.1:${(issuer.address() as AddressInfo).port}`;
    pages['/jwks'] = {
      body: await (await fetch(`${service.baseUrl}/.well-known/jwks.json`)).text(),
    };
    pages['/moved'] = { status: 302, headers: { location: '/jwks' }, body: '' };
    pages['/round'] = { status: 302, headers: { location: '/round' }, body: '' };
    pages['/elsewhere'] = { status: 302, headers: { location: 'file:///etc/passwd' }, body: '' };
    pages['/html'] = { body: '<html>' };
    pages['/null'] = { body: 'null' };
    pages['/empty'] = { body: '{"keys": []}' };
    pages['/symmetric'] = { body: '{"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}' };
    pages['/broken'] = { body: '{"keys": [{"kty": "RSA", "n": "x", "e": "AQAB"}, null, 1]}' };
    pages['/large'] = { body: `{"keys": [], "x": "${'x'.repeat(300_000)}"}` };
  });
  afterAll(() => {
    issuer.closeAllConnections();
    issuer.close();
  });
  const put = (jwks_url: unknown, more: object = {}) =>
    account.put(`${path}/auth-config`, {
      byo_jwt: { jwks_url, audience: 'app', issuer: 'https://issuer.example', ...more },
    });

  test('defaults, create, update, keep', async () => {
    expect((await account.get(`${path}/auth-config`)).body).toEqual({
      auth_mode: 'byo_jwt',
      byo_jwt: null,
      created_at: null,
      updated_at: null,
    });
    const created = await put(`${base}/jwks`);
    expect(created.status).toBe(200);
    expect(created.body).toEqual({
      auth_mode: 'byo_jwt',
      byo_jwt: {
        jwks_url: `${base}/jwks`,
        audience: 'app',
        issuer: 'https://issuer.example',
        subject_claim: 'sub',
        claims_allowlist: [],
        claims_max_bytes: 4096,
      },
      created_at: timestamp,
      updated_at: timestamp,
    });
    const updated = await put(`${base}/moved`, {
      subject_claim: 'uid',
      claims_allowlist: ['email'],
      claims_max_bytes: 100,
    });
    expect(updated.body).toMatchObject({
      byo_jwt: { jwks_url: `${base}/moved`, subject_claim: 'uid', claims_allowlist: ['email'] },
      created_at: created.body.created_at,
    });
    const kept = await account.put(`${path}/auth-config`, { auth_mode: 'byo_jwt' });
    expect(kept.body.byo_jwt).toEqual(updated.body.byo_jwt);
    expect((await account.get(`${path}/auth-config`)).body).toEqual(kept.body);
  });

  test('a JWKS that cannot be used is refused and changes nothing', async () => {
    const before = (await account.get(`${path}/auth-config`)).text;
    for (const url of [
      `${base}/nothing`,
      `${base}/html`,
      `${base}/null`,
      `${base}/empty`,
      `${base}/symmetric`,
      `${base}/broken`,
      `${base}/large`,
      `${base}/round`,
      `${base}/elsewhere`,
      `${base}/hangs`,
      'http://127.0.0.1:1/jwks',
      'http://no-such-host.invalid/jwks',
      'file:///etc/passwd',
      'ftp://127.0.0.1/jwks',
      'http://user:secret@127.0.0.1/jwks',
      'not a url',
      '',
    ]) {
      const answer = await put(url);
      expect({ url, ...answer }).toMatchObject({
        status: 422,
        body: { message: expect.any(String) },
      });
    }
    expect((await account.get(`${path}/auth-config`)).text).toBe(before);
  });

  test('wrong types: 400; another mode: 422; another account: 404', async () => {
    for (const byo_jwt of [{}, { jwks_url: 5 }, 'x', { jwks_url: base, claims_max_bytes: 0 }])
      expect((await account.put(`${path}/auth-config`, { byo_jwt })).status).toBe(400);
    expect((await account.put(`${path}/auth-config`, { auth_mode: 'magic' })).status).toBe(422);
    expect((await stranger.get(`${path}/auth-config`)).status).toBe(404);
    expect((await stranger.put(`${path}/auth-config`, {})).status).toBe(404);
  });

  test('in a hosted install private addresses are out of reach', async () => {
    const hosted = await startService({ flags: ['--host', '0.0.0.0'] });
    try {
      const owner = await hosted.api.register();
      const { id } = await owner.database();
      const port = (issuer.address() as AddressInfo).port;
      for (const url of [
        `${base}/jwks`,
        `https://127.0.0.1:${port}/jwks`,
        `https://localhost:${port}/jwks`,
        'https://[::1]/jwks',
        'https://[::ffff:127.0.0.1]/jwks',
        'https://169.254.169.254/latest/meta-data',
        'https://10.0.0.1/jwks',
        'https://0x7f.1/jwks',
      ]) {
        const answer = await owner.put(`/customer/databases/${id}/auth-config`, {
          byo_jwt: { jwks_url: url },
        });
        expect({ url, ...answer }).toMatchObject({
          status: 422,
          body: { message: expect.stringMatching(/https:|public/) },
        });
      }
    } finally {
      await hosted.stop();
    }
  });
});
