import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Account, CreatedDatabase } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;
let first: CreatedDatabase;
let second: CreatedDatabase;

beforeAll(async () => {
  service = await startService();
  account = await service.api.register();
  [first, second] = await Promise.all([account.database('first'), account.database('second')]);
});
afterAll(() => service?.stop());

const scoped = async (access: string) => {
  const scope_json = JSON.stringify({ databases: [{ id: first.id, access }] });
  const { status, body } = await account.post('/customer/tokens', { name: access, scope_json });
  expect(status).toBe(201);
  return account.as(body.token);
};

test('create, list, revoke', async () => {
  const created = await account.post('/customer/tokens', { name: 'deploy', expires_in_days: 30 });
  expect(created.status).toBe(201);
  expect(created.body).toEqual({
    id: expect.stringMatching(/^tok_[a-z0-9]{16,}$/),
    name: 'deploy',
    token: expect.stringMatching(/^cop_pat_[a-z0-9]{52,}$/),
    created_at: expect.any(String),
    expires_at: expect.any(String),
  });
  const days =
    (Date.parse(created.body.expires_at) - Date.parse(created.body.created_at)) / 86_400_000;
  expect(days).toBe(30);

  const byDefault = await account.post('/customer/tokens');
  expect(
    (Date.parse(byDefault.body.expires_at) - Date.parse(byDefault.body.created_at)) / 86_400_000,
  ).toBe(365);

  const holder = account.as(created.body.token);
  expect((await holder.get('/customer/me')).body.id).toBe(account.id);
  const listed = await account.get('/customer/tokens');
  const entry = listed.body.find((each: { id: string }) => each.id === created.body.id);
  expect(Object.keys(entry).sort()).toEqual(['created_at', 'expires_at', 'id', 'name']);
  expect(listed.text).not.toContain(created.body.token);

  const revoked = await account.delete(`/customer/tokens/${created.body.id}`);
  expect(revoked).toMatchObject({ status: 200, body: { message: expect.any(String) } });
  expect((await holder.get('/customer/me')).status).toBe(401);
  expect((await account.delete(`/customer/tokens/${created.body.id}`)).status).toBe(404);
});

test('a token may revoke itself, and is dead on its very next request, however warm', async () => {
  const { id, token } = (await account.post('/customer/tokens')).body;
  const holder = account.as(token);
  for (let i = 0; i < 20; i++) expect((await holder.get('/customer/me')).status).toBe(200);
  expect((await holder.delete(`/customer/tokens/${id}`)).status).toBe(200);
  expect((await holder.get('/customer/me')).status).toBe(401);
});

test("404 for another customer's token", async () => {
  const stranger = await service.api.register();
  const { id } = (await stranger.post('/customer/tokens')).body;
  expect((await account.delete(`/customer/tokens/${id}`)).status).toBe(404);
});

describe('scope_json', () => {
  test.each([
    ['an object', { databases: [] }],
    ['not JSON', '{'],
    ['empty', ''],
    ['a JSON scalar', '1'],
    ['a JSON array', '[]'],
    ['no databases', '{}'],
    ['databases that are no list', '{"databases": {}}'],
    ['an empty list', '{"databases": []}'],
    ['another field', '{"databases": [], "x": 1}'],
    ['an entry without access', '{"databases": [{"id": "db_x"}]}'],
    ['an unknown database', '{"databases": [{"id": "db_x", "access": "ro"}]}'],
  ])('400 when it is %s', async (_name, scope_json) => {
    expect((await account.post('/customer/tokens', { scope_json })).status).toBe(400);
  });

  test('400 for unknown access values and databases of others', async () => {
    const stranger = await service.api.register();
    const theirs = await stranger.database();
    for (const entry of [
      { id: first.id, access: 'admin' },
      { id: first.id, access: 'RO' },
      { id: first.id, access: 1 },
      { id: theirs.id, access: 'ro' },
    ])
      expect(
        (
          await account.post('/customer/tokens', {
            scope_json: JSON.stringify({ databases: [entry] }),
          })
        ).status,
      ).toBe(400);
  });
});

describe('scopes', () => {
  test('only databases in scope are listed; others are 403', async () => {
    const holder = await scoped('ro');
    const listed = await holder.get('/customer/databases');
    expect(listed.body.map((each: { id: string }) => each.id)).toEqual([first.id]);
    expect((await holder.get(`/customer/databases/${first.id}`)).status).toBe(200);
    const refused = await holder.get(`/customer/databases/${second.id}`);
    expect(refused).toMatchObject({
      status: 403,
      body: { message: 'token does not have access to this database' },
    });
    expect((await holder.get('/customer/databases/db_unknown')).status).toBe(404);
  });

  test.each(['ro', 'rw'])('%s may not do what concerns the account', async (access) => {
    const holder = await scoped(access);
    const base = `/customer/databases/${first.id}`;
    for (const answer of [
      await holder.post('/customer/databases', { name: 'x' }),
      await holder.post('/customer/databases/batch', { databases: [{ name: 'x' }] }),
      await holder.post(`${base}/branch`, { name: 'x' }),
      await holder.post('/customer/restores', { backup_id: 'bkp_x', target_name: 'x' }),
      await holder.post('/customer/tokens', {}),
      await holder.get('/customer/tokens'),
      await holder.delete('/customer/tokens/tok_x'),
      await holder.post('/customer/claim', { id_token: 'x' }),
      await holder.delete(base),
    ])
      expect(answer).toMatchObject({ status: 403, body: { message: expect.any(String) } });
    expect((await holder.get('/customer/me')).status).toBe(200);
  });

  test('ro reads only; rw writes too', async () => {
    const [reader, writer] = [await scoped('ro'), await scoped('rw')];
    const base = `/customer/databases/${first.id}`;
    for (const path of ['credentials', 'secrets', 'auth-config']) {
      expect((await reader.get(`${base}/${path}`)).status).toBe(403);
      expect((await writer.get(`${base}/${path}`)).status).toBe(200);
    }
    for (const path of [
      'schema',
      'observability',
      'users',
      'connect-keys',
      'migrations',
      'backups',
      'functions',
    ])
      expect({ path, status: (await reader.get(`${base}/${path}`)).status }).toEqual({
        path,
        status: 200,
      });
    expect((await reader.post(`${base}/connect-token`, { role: 'admin' })).status).toBe(403);
    expect((await reader.post(`${base}/connect-token`, {})).status).toBe(403);
    expect((await reader.post(`${base}/connect-token`, { role: 'readonly' })).status).toBe(201);
    expect((await reader.post(`${base}/migrations`, { name: 'm', sql: 'select 1' })).status).toBe(
      403,
    );
  });
});

test('a process that shares the control database hears of a revocation', async () => {
  // Two services on one control database: the second uses the first one's through its socket.
  const { token, id } = (await account.post('/customer/tokens')).body;
  const other = await startService({
    flags: ['--metadata-url', controlUrl(service)],
    env: { COPPICE_MASTER_KEY: readFileSync(join(service.dataDir, 'master.key'), 'utf8').trim() },
  });
  try {
    const there = () => other.api.call('GET', '/customer/me', { token });
    for (let i = 0; i < 5; i++) expect((await there()).status).toBe(200);
    await account.delete(`/customer/tokens/${id}`);
    const revokedAt = performance.now();
    while ((await there()).status !== 401 && performance.now() - revokedAt < 2_000);
    expect(performance.now() - revokedAt).toBeLessThan(100);
  } finally {
    await other.stop();
  }
});

/** The control database's socket, found from its postmaster.pid. */
function controlUrl({ dataDir }: RunningService): string {
  const lines = readFileSync(join(dataDir, 'control/data/postmaster.pid'), 'utf8').split('\n');
  return `postgresql://postgres@/postgres?host=${encodeURIComponent(lines[4]!)}&port=${lines[3]}`;
}
