import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;

beforeAll(async () => {
  service = await startService({ flags: ['--anonymous-database-limit', '12'] });
  account = await service.api.register();
});
afterAll(() => service?.stop());

const names = (databases: { name: string }[]) => databases.map((each) => each.name);

test('create, get, list, delete', async () => {
  const created = await account.post('/customer/databases', { name: 'shop', project_id: 'p1' });
  expect(created.status).toBe(201);
  const { id } = created.body;
  expect(created.body).toEqual({
    id: expect.stringMatching(/^db_[a-z0-9]{16,}$/),
    name: 'shop',
    region: 'local',
    state: 'ready',
    project_id: 'p1',
    admin_user: 'admin',
    admin_password: expect.stringMatching(/^.{20,}$/),
    connection_string: `postgresql://${id}.admin@${service.gateway.host}:${service.gateway.port}/postgres`,
    created_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
  });

  const got = await account.get(`/customer/databases/${id}`);
  expect(got.body).toMatchObject({
    id,
    name: 'shop',
    connection_string: created.body.connection_string,
  });
  expect(got.text).not.toContain(created.body.admin_password);
  await account.post('/customer/databases', { name: 'other' });
  expect(names((await account.get('/customer/databases')).body)).toEqual(['shop', 'other']);
  expect(names((await account.get('/customer/databases?project_id=p1')).body)).toEqual(['shop']);
  expect((await account.get('/customer/databases?project_id=none')).body).toEqual([]);

  const deleted = await account.delete(`/customer/databases/${id}`);
  expect(deleted).toMatchObject({
    status: 200,
    body: { message: `database ${id} has been disabled` },
  });
  expect((await account.get(`/customer/databases/${id}`)).status).toBe(404);
  expect((await account.delete(`/customer/databases/${id}`)).status).toBe(404);
  expect((await account.post('/customer/databases', { name: 'shop' })).status).toBe(201);
});

test('names: what is allowed, and 409 for one in use', async () => {
  const stranger = await service.api.register();
  for (const name of ['a', 'A', 'x'.repeat(63), 'with space', 'dots.and-dashes_1', 'größe', '名前'])
    expect({ name, status: (await stranger.post('/customer/databases', { name })).status }).toEqual(
      {
        name,
        status: 201,
      },
    );
  for (const name of [
    '',
    ' ',
    ' a',
    'a ',
    'x'.repeat(64),
    'a/b',
    'a\nb',
    "a'b",
    'a;b',
    'a"b',
    'a\u0000b',
  ])
    expect({ name, status: (await stranger.post('/customer/databases', { name })).status }).toEqual(
      {
        name,
        status: 400,
      },
    );
  expect((await stranger.post('/customer/databases', { name: 'a' })).status).toBe(409);
});

test('two creates of one name at the same moment: one 201, one 409', async () => {
  const stranger = await service.api.register();
  const answers = await Promise.all(
    Array.from({ length: 4 }, () => stranger.post('/customer/databases', { name: 'same' })),
  );
  expect(answers.map((answer) => answer.status).sort()).toEqual([201, 409, 409, 409]);
  expect((await stranger.get('/customer/databases')).body).toHaveLength(1);
});

describe('passwords', () => {
  test('a given one is kept as it is, however odd; an empty one is refused', async () => {
    const stranger = await service.api.register();
    const passwords = [
      "it's",
      'a"b\\c',
      '$1; drop role admin; --',
      'pässwörd 🔑',
      ' ',
      'x'.repeat(4000),
    ];
    for (const [index, admin_password] of passwords.entries()) {
      const created = await stranger.post('/customer/databases', {
        name: `p${index}`,
        admin_password,
      });
      expect(created.status).toBe(201);
      expect(created.body.admin_password).toBe(admin_password);
      const credentials = await stranger.get(`/customer/databases/${created.body.id}/credentials`);
      expect(credentials.body).toEqual({
        admin_user: 'admin',
        admin_password,
        connection_string: created.body.connection_string,
      });
    }
    expect(
      (await stranger.post('/customer/databases', { name: 'empty', admin_password: '' })).status,
    ).toBe(400);
  });

  test('reset gives a new one', async () => {
    const stranger = await service.api.register();
    const database = await stranger.database();
    const reset = await stranger.post(`/customer/databases/${database.id}/reset-password`);
    expect(reset.status).toBe(200);
    expect(reset.body.admin_password).not.toBe(database.admin_password);
    expect((await stranger.get(`/customer/databases/${database.id}/credentials`)).body).toEqual(
      reset.body,
    );
  });
});

describe('quota and batch', () => {
  test('422 at the limit, naming it; races do not pass it', async () => {
    const stranger = await service.api.register();
    const answers = await Promise.all(
      Array.from({ length: 15 }, (_, i) => stranger.post('/customer/databases', { name: `q${i}` })),
    );
    const statuses = answers.map((answer) => answer.status);
    expect(statuses.filter((status) => status === 201)).toHaveLength(12);
    expect(statuses.filter((status) => status === 422)).toHaveLength(3);
    expect(answers.find((answer) => answer.status === 422)?.body.message).toContain('12');
  });

  test('a batch creates what it can and lists what failed', async () => {
    const stranger = await service.api.register();
    await stranger.database('taken');
    const answer = await stranger.post('/customer/databases/batch', {
      project_id: 'batch',
      databases: [
        { name: 'one' },
        { name: 'taken' },
        { name: 'two', admin_password: 'given' },
        { name: 'one' },
        { name: 'bad/name' },
        { name: 'no password', admin_password: '' },
      ],
    });
    expect(answer.status).toBe(201);
    expect(names(answer.body.created)).toEqual(['one', 'two']);
    expect(answer.body.created[1]).toMatchObject({
      admin_password: 'given',
      project_id: 'batch',
      state: 'ready',
    });
    expect(answer.body.failed).toEqual([
      { name: 'taken', status: 409, message: expect.any(String) },
      { name: 'one', status: 409, message: expect.any(String) },
      { name: 'bad/name', status: 400, message: expect.any(String) },
      { name: 'no password', status: 400, message: expect.any(String) },
    ]);
    expect(answer.body).toMatchObject({ total_requested: 6, total_created: 2 });
    const none = await stranger.post('/customer/databases/batch', {
      databases: [{ name: 'taken' }],
    });
    expect(none).toMatchObject({ status: 200, body: { total_created: 0 } });
    for (const databases of [[], Array.from({ length: 101 }, (_, i) => ({ name: `n${i}` }))])
      expect((await stranger.post('/customer/databases/batch', { databases })).status).toBe(400);
  });
});

describe('adoption', () => {
  const adopt = (to: Account, from: Account, ids: string[], key: string, extra: object = {}) =>
    to.post('/customer/adopt-anonymous-databases', {
      anonymous_customer_id: from.id,
      anonymous_secret: from.secret,
      database_ids: ids,
      idempotency_key: key,
      ...extra,
    });

  test('preflight, then all or some are moved; the same key gives the same answer', async () => {
    const [from, to] = [await service.api.register(), await service.api.register()];
    const [one, two] = [await from.database('one'), await from.database('two')];
    await to.database('two');
    const preflight = await to.post('/customer/adopt-anonymous-databases/preflight', {
      anonymous_customer_id: from.id,
      anonymous_secret: from.secret,
    });
    expect(preflight).toMatchObject({
      status: 200,
      body: {
        databases: [
          { id: one.id, name: 'one', state: 'ACTIVE' },
          { id: two.id, name: 'two', state: 'ACTIVE' },
        ],
        quota_ok: true,
        current_count: 1,
        database_limit: 12,
      },
    });
    const token = (await from.post('/customer/tokens')).body.token;
    const moved = await adopt(to, from, [one.id, two.id, 'db_unknown'], 'k1');
    expect(moved.status).toBe(200);
    expect(moved.body).toEqual({
      transferred: [one.id],
      skipped: [
        { id: two.id, reason: expect.any(String) },
        { id: 'db_unknown', reason: expect.any(String) },
      ],
      total_transferred: 1,
    });
    expect((await adopt(to, from, [one.id, two.id, 'db_unknown'], 'k1')).body).toEqual(moved.body);
    expect((await adopt(to, from, [two.id], 'k1')).status).toBe(409);
    expect((await to.get(`/customer/databases/${one.id}`)).status).toBe(200);
    for (const lost of [from, from.as(token)])
      expect((await lost.get(`/customer/databases/${one.id}`)).status).toBe(404);
    expect((await to.get(`/customer/databases/${one.id}/credentials`)).body.admin_password).toBe(
      one.admin_password,
    );
    expect((await adopt(to, from, [one.id], 'k2')).status).toBe(409);
  });

  test('401 for a wrong secret, 400 for more than 100 ids, 422 over quota with nothing moved', async () => {
    const [from, to] = [await service.api.register(), await service.api.register()];
    const database = await from.database('mine');
    expect((await adopt(to, from, [database.id], 'k', { anonymous_secret: 'wrong' })).status).toBe(
      401,
    );
    expect((await adopt(to, from, Array(101).fill(database.id), 'k')).status).toBe(400);
    await to.post('/customer/databases/batch', {
      databases: Array.from({ length: 12 }, (_, i) => ({ name: `f${i}` })),
    });
    expect((await adopt(to, from, [database.id], 'k')).status).toBe(422);
    expect((await from.get(`/customer/databases/${database.id}`)).status).toBe(200);
  });

  test('409 for databases of the account itself', async () => {
    const own = await service.api.register();
    const database = await own.database();
    expect((await adopt(own, own, [database.id], 'k')).status).toBe(409);
  });
});

test('an acknowledged database survives kill -9 of the service; its password too', async () => {
  let running = await startService();
  const owner = await running.api.register();
  const databases = await Promise.all(Array.from({ length: 5 }, () => owner.database()));
  await running.kill();
  running = await running.restart();
  try {
    const call = (path: string) => running.api.call('GET', path, { token: owner.token });
    expect((await call('/customer/databases')).body).toHaveLength(5);
    for (const database of databases) {
      const credentials = await call(`/customer/databases/${database.id}/credentials`);
      expect(credentials.body.admin_password).toBe(database.admin_password);
    }
  } finally {
    await running.stop();
  }
});
