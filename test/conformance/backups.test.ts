import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

// On a busy machine a copy and a start take their time.
vi.setConfig({ testTimeout: 120_000 });

let service: RunningService;
let account: Account;
let databaseId: string;

beforeAll(async () => {
  service = await startService({ flags: ['--pool-size', '2', '--anonymous-database-limit', '8'] });
  account = await service.api.register();
  databaseId = (await account.database('shop')).id;
  await account.sql(databaseId, 'create table t(i int primary key); insert into t values (1), (2)');
});
afterAll(() => service?.stop());

const backupsOf = (id: string) => `/customer/databases/${id}/backups`;
const stored = () => readdir(join(service.dataDir, 'backups')).catch(() => [] as string[]);

/** Asks until the state is another one; the interface has no other way to wait. */
async function settled<T extends { state: string }>(path: string, state: string): Promise<T> {
  for (;;) {
    const { body } = await account.get<T>(path);
    if (body.state !== state) return body;
    await delay(50);
  }
}
async function backUp(id = databaseId, body: object = {}) {
  const created = await account.post(backupsOf(id), body);
  expect(created.status).toBe(201);
  return settled<any>(`${backupsOf(id)}/${created.body.id}`, 'creating');
}
async function restore(backupId: string, targetName: string, extra: object = {}) {
  const created = await account.post('/customer/restores', {
    backup_id: backupId,
    target_name: targetName,
    ...extra,
  });
  expect(created.status).toBe(201);
  return settled<any>(`/customer/restores/${created.body.id}`, 'restoring');
}

describe('backups', () => {
  test('create, get, list, delete', async () => {
    const created = await account.post(backupsOf(databaseId), { label: 'before the sale' });
    expect(created.status).toBe(201);
    const { id } = created.body;
    expect(created.body).toEqual({
      id: expect.stringMatching(/^bkp_[a-z0-9]{16,}$/),
      database_id: databaseId,
      state: 'creating',
      label: 'before the sale',
      size_bytes: null,
      created_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      completed_at: null,
      error: null,
    });
    const ready = await settled<any>(`${backupsOf(databaseId)}/${id}`, 'creating');
    expect(ready).toMatchObject({ id, state: 'ready', error: null });
    expect(ready.size_bytes).toBeGreaterThan(100_000);
    expect(Date.parse(ready.completed_at)).toBeGreaterThanOrEqual(Date.parse(ready.created_at));
    expect(await stored()).toContain(`${id}.backup`);

    const second = await backUp();
    expect(second.label).toBeNull();
    const list = await account.get(backupsOf(databaseId));
    expect(list.body.map((each: { id: string }) => each.id)).toEqual([second.id, id]);

    const deleted = await account.delete(`${backupsOf(databaseId)}/${second.id}`);
    expect(deleted.status).toBe(200);
    expect(Object.keys(deleted.body)).toEqual(['message']);
    expect((await account.get(`${backupsOf(databaseId)}/${second.id}`)).status).toBe(404);
    expect((await account.delete(`${backupsOf(databaseId)}/${second.id}`)).status).toBe(404);
    await goneFromStore(second.id);
    await account.delete(`${backupsOf(databaseId)}/${id}`);
  });

  test('go with their database', async () => {
    const other = (await account.database('doomed')).id;
    const { id } = await backUp(other);
    await account.delete(`/customer/databases/${other}`);
    await goneFromStore(id);
    const answer = await account.post('/customer/restores', { backup_id: id, target_name: 'x' });
    expect(answer.status).toBe(404);
  });

  test('one that is deleted while it is made leaves nothing', async () => {
    const { body } = await account.post(backupsOf(databaseId));
    expect((await account.delete(`${backupsOf(databaseId)}/${body.id}`)).status).toBe(200);
    // The next one is made after it.
    await backUp();
    await goneFromStore(body.id);
  });

  test.each([{ label: 7 }, { label: 'x'.repeat(256) }, []])('%j is 400', async (body) => {
    expect((await account.post(backupsOf(databaseId), body)).status).toBe(400);
  });

  test('of another database or another customer are 404', async () => {
    const { id } = await backUp();
    const sibling = (await account.database('sibling')).id;
    expect((await account.get(`${backupsOf(sibling)}/${id}`)).status).toBe(404);
    expect((await account.delete(`${backupsOf(sibling)}/${id}`)).status).toBe(404);
    const stranger = await service.api.register();
    expect((await stranger.get(`${backupsOf(databaseId)}/${id}`)).status).toBe(404);
    const stolen = await stranger.post('/customer/restores', { backup_id: id, target_name: 'x' });
    expect(stolen.status).toBe(404);
    await account.delete(`/customer/databases/${sibling}`);
  });
});

describe('restores', () => {
  /** Holds the rows 1 and 2. */
  let backup: { id: string };
  beforeAll(async () => {
    backup = await backUp();
  }, 120_000);

  test('make a new database of what was backed up', async () => {
    await account.sql(databaseId, 'insert into t values (3)');
    const restored = await restore(backup.id, 'restored');
    expect(restored).toEqual({
      id: expect.stringMatching(/^rst_[a-z0-9]{16,}$/),
      backup_id: backup.id,
      target_name: 'restored',
      database_id: expect.stringMatching(/^db_/),
      state: 'ready',
      created_at: expect.any(String),
      completed_at: expect.any(String),
      error: null,
    });
    const { rows } = await account.sql(restored.database_id, 'select i from t order by i');
    expect(rows).toEqual([[1], [2]]);
    const credentials = await account.get(
      `/customer/databases/${restored.database_id}/credentials`,
    );
    expect(credentials.body.admin_password).toMatch(/^.{20,}$/);
    // It has a history from its own creation on.
    const { created_at } = (await account.get(`/customer/databases/${restored.database_id}`)).body;
    await account.sql(restored.database_id, 'delete from t');
    const branch = await account.post(`/customer/databases/${restored.database_id}/branch`, {
      name: 'of the restored',
      snapshot_at: created_at,
    });
    expect(branch.status).toBe(201);
    expect((await account.sql(branch.body.id, 'select count(*) from t')).rows).toEqual([[2]]);
    for (const id of [branch.body.id, restored.database_id])
      await account.delete(`/customer/databases/${id}`);
  });

  test('with the same idempotency_key are the same', async () => {
    const body = { backup_id: backup.id, target_name: 'once', idempotency_key: 'key 1' };
    const answers = await Promise.all(
      [1, 2, 3].map(() => account.post('/customer/restores', body)),
    );
    expect(answers.map(({ status }) => status)).toEqual([201, 201, 201]);
    expect(new Set(answers.map((each) => each.body.id)).size).toBe(1);
    const { id } = answers[0]!.body;
    const { database_id } = await settled<any>(`/customer/restores/${id}`, 'restoring');
    const again = await account.post('/customer/restores', body);
    expect(again.body).toMatchObject({ id, state: 'ready', database_id });
    const other = await account.post('/customer/restores', { ...body, target_name: 'twice' });
    expect(other.status).toBe(409);
    await account.delete(`/customer/databases/${database_id}`);
  });

  test('onto a name in use are 409, also one that is being restored', async () => {
    const to = (target_name: string) =>
      account.post('/customer/restores', { backup_id: backup.id, target_name });
    expect((await to('shop')).status).toBe(409);
    const first = await to('soon');
    expect(first.status).toBe(201);
    expect((await to('soon')).status).toBe(409);
    const { database_id } = await settled<any>(`/customer/restores/${first.body.id}`, 'restoring');
    await account.delete(`/customer/databases/${database_id}`);
  });

  test('of a backup that is not ready are 409', async () => {
    const { body } = await account.post(backupsOf(databaseId));
    const answer = await account.post('/customer/restores', {
      backup_id: body.id,
      target_name: 'early',
    });
    expect(answer.status).toBe(409);
    await settled(`${backupsOf(databaseId)}/${body.id}`, 'creating');
  });

  test('beyond the quota are 422', async () => {
    const extra: string[] = [];
    for (;;) {
      const answer = await account.post('/customer/databases', { name: `extra ${extra.length}` });
      if (answer.status === 422) break;
      extra.push(answer.body.id);
    }
    const answer = await account.post('/customer/restores', {
      backup_id: backup.id,
      target_name: 'one too many',
    });
    expect(answer.status).toBe(422);
    for (const id of extra) await account.delete(`/customer/databases/${id}`);
  });

  test.each([
    {},
    { backup_id: 'bkp_x' },
    { target_name: 'x' },
    { backup_id: 7, target_name: 'x' },
    { backup_id: 'bkp_x', target_name: ' x' },
    { backup_id: 'bkp_x', target_name: 'x', idempotency_key: 7 },
  ])('%j is 400', async (body) => {
    expect((await account.post('/customer/restores', body)).status).toBe(400);
  });

  test('that nobody made, or another customer, are 404', async () => {
    expect((await account.get('/customer/restores/rst_nothing')).status).toBe(404);
    const unknown = { backup_id: 'bkp_nothing', target_name: 'x' };
    expect((await account.post('/customer/restores', unknown)).status).toBe(404);
    const { id, database_id } = await restore(backup.id, 'mine');
    const stranger = await service.api.register();
    expect((await stranger.get(`/customer/restores/${id}`)).status).toBe(404);
    await account.delete(`/customer/databases/${database_id}`);
  });

  test('of a damaged backup fail and say why; nothing is left', async () => {
    const damaged = await backUp();
    const path = join(service.dataDir, 'backups', `${damaged.id}.backup`);
    const bytes = await readFile(path);
    const at = Math.floor(bytes.length / 2);
    bytes[at] = bytes[at]! ^ 0x10;
    await writeFile(path, bytes);
    const failed = await restore(damaged.id, 'damaged');
    expect(failed).toMatchObject({ state: 'failed', database_id: null });
    expect(failed.error).toMatch(/damaged at byte \d+/);
    expect(failed.error).not.toContain(service.dataDir);
    const names = (await account.get('/customer/databases')).body.map(
      (each: { name: string }) => each.name,
    );
    expect(names).not.toContain('damaged');
    // Its name is free again.
    const again = await account.post('/customer/databases', { name: 'damaged' });
    expect(again.status).toBe(201);
  });
});

async function goneFromStore(id: string): Promise<void> {
  while ((await stored()).some((name) => name.startsWith(id))) await delay(50);
}
