import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

// On a busy machine a copy and a start take their time.
vi.setConfig({ testTimeout: 120_000 });

let service: RunningService;
let account: Account;
let parentId: string;

beforeAll(async () => {
  service = await startService({ flags: ['--branch-limit', '6', '--pool-size', '3'] });
  account = await service.api.register();
  parentId = (await account.database('parent')).id;
  await account.sql(parentId, 'create table t(i int primary key); insert into t values (1)');
});
afterAll(() => service?.stop());

let count = 0;
const branch = (body: object, of = parentId) =>
  account.post(`/customer/databases/${of}/branch`, { name: `branch ${++count}`, ...body });
const rows = async (id: string) =>
  (await account.sql(id, 'select i from t order by i')).rows.flat() as number[];
/** The clock between two commits: neither shares its millisecond. */
async function instant(): Promise<string> {
  await delay(3);
  const now = new Date().toISOString();
  await delay(3);
  return now;
}

test('a branch is a database of its own', async () => {
  const answer = await branch({ name: 'feature' });
  expect(answer.status).toBe(201);
  const { id } = answer.body;
  expect(answer.body).toEqual({
    id: expect.stringMatching(/^db_[a-z0-9]{16,}$/),
    name: 'feature',
    region: 'local',
    state: 'ready',
    parent_database_id: parentId,
    connection_string: `postgresql://${id}.admin@${service.gateway.host}:${service.gateway.port}/postgres`,
    created_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
  });
  expect((await account.get(`/customer/databases/${id}`)).body.parent_database_id).toBe(parentId);
  expect(await rows(id)).toEqual([1]);

  const [mine, parents] = await Promise.all(
    [id, parentId].map((each) => account.get(`/customer/databases/${each}/credentials`)),
  );
  expect(mine!.body.admin_password).not.toBe(parents!.body.admin_password);

  await account.sql(id, 'insert into t values (100)');
  expect(await rows(parentId)).toEqual([1]);
  await account.delete(`/customer/databases/${id}`);
  expect(await rows(parentId)).toEqual([1]);
});

test('migrations, users and roles come along', async () => {
  const source = (await account.database('source')).id;
  const path = `/customer/databases/${source}`;
  await account.post(`${path}/migrations`, { name: '1', sql: 'create table m(i int)' });
  await account.post(`${path}/users`, { username: 'alice', password: 'secret-of-alice' });
  const { id } = (await branch({}, source)).body;
  const migrations = await account.get(`/customer/databases/${id}/migrations`);
  expect(migrations.body.map((each: { name: string }) => each.name)).toEqual(['1']);
  const users = await account.get(`/customer/databases/${id}/users`);
  expect(users.body.map((each: { name: string }) => each.name)).toContain('alice');
  expect(
    (await account.post(`/customer/databases/${id}/migrations`, { name: '1', sql: 'select 1' }))
      .status,
  ).toBe(409);
});

test('secrets come along, with the values they had', async () => {
  const source = (await account.database('with secrets')).id;
  const names = async (id: string) =>
    (await account.get(`/customer/databases/${id}/secrets`)).body.map(
      (each: { name: string }) => each.name,
    );
  await account.post(`/customer/databases/${source}/secrets`, { name: 'OLD', value: 'x' });
  const then = await instant();
  await account.delete(`/customer/databases/${source}/secrets/OLD`);
  await account.post(`/customer/databases/${source}/secrets`, { name: 'NEW', value: 'y' });
  expect(await names((await branch({}, source)).body.id)).toEqual(['NEW']);
  expect(await names((await branch({ snapshot_at: then }, source)).body.id)).toEqual(['OLD']);
});

describe('snapshot_at', () => {
  test('every transaction up to it is there, none after', async () => {
    const source = await account.database('timeline');
    await account.sql(source.id, 'create table t(i int primary key)');
    const instants: string[] = [];
    for (let i = 1; i <= 4; i++) {
      await account.sql(source.id, `insert into t values (${i})`);
      instants.push(await instant());
    }
    for (const [index, snapshotAt] of [...instants.entries()].reverse()) {
      const answer = await branch({ snapshot_at: snapshotAt }, source.id);
      expect(answer.status).toBe(201);
      expect(await rows(answer.body.id)).toEqual([1, 2, 3, 4].slice(0, index + 1));
    }
  });

  test('the clock read right after a commit includes that commit', async () => {
    const source = await account.database('right after');
    await account.sql(source.id, 'create table t(i int)');
    for (let i = 1; i <= 3; i++) {
      await account.sql(source.id, `insert into t values (${i})`);
      const answer = await branch({ snapshot_at: new Date().toISOString() }, source.id);
      expect(await rows(answer.body.id)).toHaveLength(i);
    }
  });

  test('reaches back to the creation of the database, not beyond', async () => {
    const source = await account.database('young');
    await account.sql(source.id, 'create table t(i int)');
    const atBirth = await branch({ snapshot_at: source.created_at }, source.id);
    expect(atBirth.status).toBe(201);
    const tables = await account.get(`/customer/databases/${atBirth.body.id}/schema`);
    expect(tables.body.tables).toEqual([]);
    const before = new Date(Date.parse(source.created_at) - 1).toISOString();
    const answer = await branch({ snapshot_at: before }, source.id);
    expect(answer.status).toBe(422);
    expect(answer.body.message).toContain(source.created_at);
  });

  test.each(['2020-01-01T00:00:00Z', '2999-01-01T00:00:00Z', '9999-12-31T23:59:59.999Z'])(
    '%s is outside the history',
    async (snapshotAt) => {
      expect((await branch({ snapshot_at: snapshotAt })).status).toBe(422);
    },
  );

  test.each(['', 'now', '2026-01-01', '2026-13-01T00:00:00Z', '2026-01-01T00:00:00', 17, {}])(
    '%j is malformed',
    async (snapshotAt) => {
      expect((await branch({ snapshot_at: snapshotAt })).status).toBe(400);
    },
  );

  test('null counts as omitted', async () => {
    const answer = await branch({ snapshot_at: null });
    expect(answer.status).toBe(201);
    await account.delete(`/customer/databases/${answer.body.id}`);
  });
});

describe('refusals', () => {
  test('a name that exists is 409, and leaves nothing behind', async () => {
    const before = (await account.get('/customer/databases')).body.length;
    expect((await branch({ name: 'parent' })).status).toBe(409);
    expect((await account.get('/customer/databases')).body).toHaveLength(before);
  });

  test('two at once with one name: one wins', async () => {
    const answers = await Promise.all([branch({ name: 'twin' }), branch({ name: 'twin' })]);
    expect(answers.map(({ status }) => status).sort()).toEqual([201, 409]);
    const { id } = answers.find(({ status }) => status === 201)!.body;
    await account.delete(`/customer/databases/${id}`);
  });

  test.each([{}, { name: 7 }, { name: '' }, { name: ' x' }])('%j is 400', async (body) => {
    const answer = await account.post(`/customer/databases/${parentId}/branch`, body);
    expect(answer.status).toBe(400);
  });

  test("another customer's database is 404, for branches too", async () => {
    const stranger = await service.api.register();
    const answer = await stranger.post(`/customer/databases/${parentId}/branch`, { name: 'mine' });
    expect(answer.status).toBe(404);
  });

  test('the quota of branches is 422', async () => {
    const source = (await account.database('full')).id;
    const answers = [];
    for (let i = 0; i < 7; i++) answers.push(await branch({}, source));
    expect(answers.map(({ status }) => status)).toEqual([201, 201, 201, 201, 201, 201, 422]);
    expect(answers.at(-1)!.body.message).toContain('6 branches');
  });
});

test('a branch outlives its parent', async () => {
  const source = (await account.database('mortal')).id;
  await account.sql(source, 'create table t(i int); insert into t values (5)');
  const { id } = (await branch({}, source)).body;
  const then = await instant();
  await account.sql(id, 'insert into t values (6)');
  expect((await account.delete(`/customer/databases/${source}`)).status).toBe(200);
  expect(await rows(id)).toEqual([5, 6]);
  const again = await branch({ snapshot_at: then }, id);
  expect(await rows(again.body.id)).toEqual([5]);
});
