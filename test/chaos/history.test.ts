// kill -9 of the service in the middle of a branch, a backup and a restore. After the next start
// there is no half-made database, no backup is lost or left hanging, and the disk is back to where
// it was.
import { execFile } from 'node:child_process';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { sizeOf } from '../../scripts/soak-sizes.ts';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

const run = promisify(execFile);
const rounds = sizeOf('history-kills');

let service: RunningService;
let account: Account;
let parentId: string;

beforeAll(async () => {
  service = await startService({ flags: ['--pool-size', '1'] });
  account = await service.api.register();
  parentId = (await account.database('parent')).id;
  await account.sql(
    parentId,
    `create table t as select i, md5(i::text) as text from generate_series(1, 400000) i`,
  );
  // Nothing is left to be written later: what the disk gains is then what the tests leave.
  await account.sql(parentId, 'vacuum (freeze, analyze)');
  await account.sql(parentId, 'checkpoint');
});
afterAll(() => service?.stop());

const count = async (id: string) =>
  (await account.sql(id, 'select count(*) from t')).rows[0][0] as number;
const listed = async () =>
  (await account.get<{ id: string; name: string }[]>('/customer/databases')).body;

/** Kills the service `afterMs` into `request`, which is expected not to be answered. */
async function killDuring(request: () => Promise<unknown>, afterMs: number): Promise<void> {
  const answer = request().catch(() => {});
  await delay(afterMs);
  await service.kill();
  await answer;
  service = await service.restart();
  account = (await service.api.register()).as(account.token);
}

/** What databases and backups take, when everything on its way out has gone. */
async function settledDisk(): Promise<{ kilobytes: number; instances: string[] }> {
  const below = (name: string) => join(service.dataDir, name);
  for (const name of ['drafts', 'trash'])
    while ((await readdir(below(name))).length > 0) await delay(50);
  const { stdout } = await run('du', ['-sk', below('instances')]);
  return { kilobytes: Number.parseInt(stdout, 10), instances: await readdir(below('instances')) };
}

async function expectNothingHalfMade(): Promise<void> {
  const { instances } = await settledDisk();
  expect(instances.sort()).toEqual((await listed()).map(({ id }) => id).sort());
}

async function settled<T extends { state: string }>(path: string, state: string): Promise<T> {
  for (;;) {
    const { body } = await account.get<T>(path);
    if (body.state !== state) return body;
    await delay(50);
  }
}

async function removeAllBut(ids: readonly string[]): Promise<void> {
  for (const { id } of await listed())
    if (!ids.includes(id)) await account.delete(`/customer/databases/${id}`);
}

/** From the very beginning of the work to about its end, a different moment each round. */
const moment = (round: number, longMs: number) => 5 + Math.floor((longMs * round) / rounds);

test('in the middle of a branch', { timeout: 600_000 }, async () => {
  const before = await settledDisk();
  const branch = (body: object) => account.post(`/customer/databases/${parentId}/branch`, body);
  for (let round = 0; round < rounds; round++) {
    const at = round % 2 === 0 ? {} : { snapshot_at: new Date().toISOString() };
    await killDuring(() => branch({ name: 'interrupted', ...at }), moment(round, 1500));
    await expectNothingHalfMade();
    const survivor = (await listed()).find(({ name }) => name === 'interrupted');
    if (survivor) expect(await count(survivor.id)).toBe(400_000);
    else {
      // The name is free, and nothing in the way.
      const again = await branch({ name: 'interrupted' });
      expect(again.status).toBe(201);
      expect(await count(again.body.id)).toBe(400_000);
    }
    await removeAllBut([parentId]);
    expect(await count(parentId)).toBe(400_000);
  }
  const after = await settledDisk();
  expect(after.instances).toEqual(before.instances);
  // The parent's own log grows by what branching and restarts write.
  expect(after.kilobytes - before.kilobytes).toBeLessThan(rounds * 12_000);
});

test('in the middle of a backup', { timeout: 600_000 }, async () => {
  const path = `/customer/databases/${parentId}/backups`;
  for (let round = 0; round < rounds; round++) {
    await killDuring(() => account.post(path, {}), 20 + moment(round, 1500));
    const { body } = await account.get<{ id: string }[]>(path);
    for (const { id } of body) {
      const backup = await settled<{ state: string; error: string | null }>(
        `${path}/${id}`,
        'creating',
      );
      expect(backup).toMatchObject({ state: 'ready', error: null });
    }
    const stored = await readdir(join(service.dataDir, 'backups')).catch(() => []);
    expect(stored.sort()).toEqual(body.map(({ id }) => `${id}.backup`).sort());
  }
});

test('in the middle of a restore', { timeout: 600_000 }, async () => {
  const path = `/customer/databases/${parentId}/backups`;
  const { id: backupId } = (await account.post(path, {})).body;
  await settled(`${path}/${backupId}`, 'creating');
  for (let round = 0; round < rounds; round++) {
    const request = {
      backup_id: backupId,
      target_name: 'restored',
      idempotency_key: `round ${round}`,
    };
    await killDuring(() => account.post('/customer/restores', request), 20 + moment(round, 1500));
    // Whether or not it had arrived: the same key, one restore.
    const { id } = (await account.post('/customer/restores', request)).body;
    const restore = await settled<any>(`/customer/restores/${id}`, 'restoring');
    expect(restore).toMatchObject({ state: 'ready', error: null });
    expect(await count(restore.database_id)).toBe(400_000);
    expect((await listed()).filter(({ name }) => name === 'restored')).toHaveLength(1);
    await expectNothingHalfMade();
    await removeAllBut([parentId]);
  }
});
