import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;
let path: string;

beforeAll(async () => {
  service = await startService();
  account = await service.api.register();
  path = `/customer/databases/${(await account.database()).id}/secrets`;
});
afterAll(() => service.stop());

test('a secret is created, listed, updated and deleted, and its value is never shown', async () => {
  const value = 'the-value-nobody-may-see';
  const created = await account.post(path, { name: 'API_KEY', value });
  expect(created.status).toBe(201);
  expect(Object.keys(created.body).sort()).toEqual(['created_at', 'name']);

  const duplicate = await account.post(path, { name: 'API_KEY', value: 'other' });
  expect(duplicate.status).toBe(409);

  const updated = await account.put(`${path}/API_KEY`, { value: `${value}-2` });
  expect(updated.status).toBe(200);
  expect(Object.keys(updated.body).sort()).toEqual(['name', 'updated_at']);

  const listed = await account.get(path);
  expect(listed.body).toEqual([
    { name: 'API_KEY', created_at: created.body.created_at, updated_at: updated.body.updated_at },
  ]);
  for (const answer of [created, duplicate, updated, listed])
    expect(answer.text).not.toContain(value);
  expect(service.log()).not.toContain(value);

  const deleted = await account.delete(`${path}/API_KEY`);
  expect([deleted.status, deleted.text]).toEqual([204, '']);
  expect((await account.get(path)).body).toEqual([]);
  expect((await account.post(path, { name: 'API_KEY', value })).status).toBe(201);
});

test.each(['', 'a-b', 'a b', 'a.b', 'ä', '../x', 'x'.repeat(300)])(
  'the name "%s": 400',
  async (name) => {
    expect((await account.post(path, { name, value: 'v' })).status).toBe(400);
  },
);

test.each([{}, { name: 'A' }, { value: 'v' }, { name: 1, value: 'v' }, { name: 'A', value: 1 }])(
  'the body %j: 400',
  async (body) => expect((await account.post(path, body)).status).toBe(400),
);

test('an unknown secret: 404', async () => {
  expect((await account.put(`${path}/NOPE`, { value: 'v' })).status).toBe(404);
  expect((await account.delete(`${path}/NOPE`)).status).toBe(404);
});

test("another account's database: 404; a read-only token: 403", async () => {
  const stranger = await service.api.register();
  expect((await stranger.get(path)).status).toBe(404);
  expect((await stranger.post(path, { name: 'A', value: 'v' })).status).toBe(404);
  const id = path.split('/')[3];
  const scope_json = JSON.stringify({ databases: [{ id, access: 'ro' }] });
  const { body } = await account.post('/customer/tokens', { scope_json });
  expect((await account.as(body.token).get(path)).status).toBe(403);
});

test('many who change one secret at once all succeed', async () => {
  await account.post(path, { name: 'BUSY', value: '0' });
  const answers = await Promise.all(
    Array.from({ length: 12 }, (_, n) => account.put(`${path}/BUSY`, { value: `v${n}` })),
  );
  expect(answers.map(({ status }) => status)).toEqual(Array(12).fill(200));
  const creates = await Promise.all(
    Array.from({ length: 12 }, () => account.post(path, { name: 'RACE', value: 'x' })),
  );
  expect(creates.filter(({ status }) => status === 201)).toHaveLength(1);
  expect(creates.filter(({ status }) => status === 409)).toHaveLength(11);
});
