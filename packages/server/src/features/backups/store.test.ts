import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Metastore, openMetastore } from '../../engine/metastore/metastore.ts';
import {
  type ControlInstance,
  startControlInstance,
} from '../../engine/postgres/control-instance.ts';
import { openPostgresHost, type PostgresHost } from '../../engine/postgres/postgres-host.ts';
import { createLogger } from '../../kernel/logger.ts';
import * as store from './store.ts';

const root = resolve(import.meta.dirname, '../../../../..');
const logger = createLogger('silent');
const home = 'here';
let dataDir: string;
let host: PostgresHost;
let control: ControlInstance;
let metastore: Metastore;

beforeAll(async () => {
  dataDir = await mkdtemp(join(tmpdir(), 'coppice-backups-'));
  const cacheDir = join(root, 'node_modules/.cache/coppice');
  host = await openPostgresHost({ dataDir, cacheDir, logger });
  control = await startControlInstance({ host, logger });
  metastore = await openMetastore({
    connection: control.connection,
    schemaDirectory: join(root, 'packages/server/schema/control'),
    logger,
  });
  await metastore.query(`insert into accounts (id) values ('anon_a')`);
  for (const id of ['db_a', 'db_b'])
    await metastore.query(
      `insert into databases (id, account_key, name, region, home, admin_password_sealed, ready)
       select $1, key, $1, 'local', $2, '', true from accounts`,
      [id, home],
    );
});
afterAll(async () => {
  await metastore.close();
  await control.stop();
  await host.close();
  await rm(dataDir, { recursive: true, force: true });
});

it('removes old scheduled backups, but never the newest good one, nor those made by hand', async () => {
  const add = (id: string, databaseId: string, ageDays: number, state: string, scheduled = true) =>
    metastore.query(
      `insert into backups (id, database_id, home, state, scheduled, created_at)
       values ($1, $2, $3, $4, $5, now() - $6 * interval '1 day')`,
      [id, databaseId, home, state, scheduled, ageDays],
    );
  await add('bkp_oldest', 'db_a', 20, 'ready');
  await add('bkp_old', 'db_a', 10, 'ready');
  await add('bkp_manual', 'db_a', 15, 'ready', false);
  await add('bkp_failed', 'db_a', 12, 'failed');
  await add('bkp_new', 'db_a', 1, 'ready');
  await add('bkp_only', 'db_b', 30, 'ready');
  await add('bkp_recent', 'db_b', 1, 'failed');

  const weekAgo = new Date(Date.now() - 7 * 24 * 3_600_000);
  expect(await store.deleteExpired(metastore, 'elsewhere', weekAgo)).toBe(0);
  expect(await store.deleteExpired(metastore, home, weekAgo)).toBe(3);
  const left = async (id: string) =>
    (await store.listBackups(metastore, id)).map((backup) => backup.id);
  expect(await left('db_a')).toEqual(['bkp_new', 'bkp_manual']);
  expect(await left('db_b')).toEqual(['bkp_recent', 'bkp_only']);
  // Their objects go too, by a job of the process that stored them.
  const { rows } = await metastore.query<{ subject: string }>(
    `select subject from jobs where kind = 'remove-backup' and home = $1 order by subject`,
    [home],
  );
  expect(rows.map(({ subject }) => subject)).toEqual(['bkp_failed', 'bkp_old', 'bkp_oldest']);
});

it('schedules every database that has no scheduled backup at work', async () => {
  expect(await store.databasesOf(metastore, home)).toEqual(['db_a', 'db_b']);
  await store.insertBackup(metastore, {
    id: 'bkp_running',
    databaseId: 'db_a',
    home,
    label: null,
    scheduled: true,
  });
  expect(await store.databasesOf(metastore, home)).toEqual(['db_b']);
  expect(await store.databasesOf(metastore, 'elsewhere')).toEqual([]);
});

it('finishes a backup once', async () => {
  const result = { sizeBytes: 7, sha256: 'x' };
  expect(await store.finishBackup(metastore, 'bkp_running', result)).toBe(true);
  expect(await store.finishBackup(metastore, 'bkp_running', { error: 'late' })).toBe(false);
  expect(await store.finishBackup(metastore, 'bkp_unknown', result)).toBe(false);
  const backup = await store.findBackup(metastore, 'db_a', 'bkp_running');
  expect(backup).toMatchObject({ state: 'ready', size_bytes: 7, error: null });
});
