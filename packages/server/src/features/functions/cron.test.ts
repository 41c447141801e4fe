import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { type Metastore, openMetastore } from '../../engine/metastore/metastore.ts';
import { startControlInstance } from '../../engine/postgres/control-instance.ts';
import { openPostgresHost } from '../../engine/postgres/postgres-host.ts';
import { systemClock } from '../../kernel/clock.ts';
import { createLogger } from '../../kernel/logger.ts';
import { type CronLoop, createCronLoop } from './cron.ts';
import { createRunOwner } from './run-owner.ts';
import { deadOwners, failRunsOf, finishRun } from './run-store.ts';
import type { Runs } from './runs.ts';
import { nextTickAfter } from './schedule.ts';
import type { CurrentFunction } from './store.ts';

const root = resolve(fileURLToPath(import.meta.url), '../../../../../..');
const logger = createLogger('silent');
const release: (() => Promise<unknown>)[] = [];
let metastore: Metastore;

beforeAll(async () => {
  const dataDir = await mkdtemp(join(tmpdir(), 'coppice-cron-'));
  release.unshift(() => rm(dataDir, { recursive: true, force: true }));
  const host = await openPostgresHost({
    dataDir,
    cacheDir: join(root, 'node_modules/.cache/coppice'),
    logger,
  });
  release.unshift(() => host.close());
  const control = await startControlInstance({ host, logger });
  release.unshift(() => control.stop());
  metastore = await openMetastore({
    connection: control.connection,
    schemaDirectory: join(root, 'packages/server/schema/control'),
    logger,
  });
  release.unshift(() => metastore.close());
  await metastore.query("insert into accounts (id) values ('anon_a')");
  await metastore.query(
    `insert into databases (id, account_key, name, region, home, admin_password_sealed, ready)
     select 'db_' || home, key, home, 'local', home, '', true
       from accounts, unnest(array['here', 'elsewhere']) home`,
  );
});
afterAll(async () => {
  for (const step of release) await step();
});
beforeEach(() => metastore.query('delete from functions'));

/** A function that was due at `dueAt`. */
async function schedule(id: string, home: string, expression: string, dueAt: Date): Promise<void> {
  await metastore.query(
    `insert into functions (id, database_id, name, visibility, version_id, cron_schedule, next_tick_at)
     values ($1, $2, $1, 'private', 'ver_x', $3, $4)`,
    [id, `db_${home}`, expression, dueAt],
  );
}

/** A process that serves: it hears of every run it has to make. */
function serve(owner: string): { loop: CronLoop; made: string[]; notes: string[] } {
  const made: string[] = [];
  const notes: string[] = [];
  const runs: Pick<Runs, 'find' | 'runScheduled' | 'note'> = {
    find: async () =>
      ({ version: { id: 'ver_x', run_as: 'authenticated' } }) as unknown as CurrentFunction,
    runScheduled: async (_databaseId, functionId, runId) => {
      made.push(functionId);
      if (functionId.startsWith('fn_slow')) return;
      await finishRun(metastore.pool, runId, { status: 'completed', resultJson: '1', logs: '' });
    },
    note: (_runId, message) => void notes.push(message),
  };
  const loop = createCronLoop({ metastore, runs, home: 'here', owner, clock: systemClock, logger });
  return { loop, made, notes };
}

const counts = async () =>
  (await metastore.query('select function_id, count(*)::int as n from function_runs group by 1'))
    .rows;

test('however many processes serve, a tick makes one run; a missed one runs once', async () => {
  const anHourAgo = new Date(Date.now() - 3_600_000);
  for (let n = 0; n < 20; n++) await schedule(`fn_${n}`, 'here', '0 0 1 1 *', anHourAgo);
  await schedule('fn_other', 'elsewhere', '0 0 1 1 *', anHourAgo);
  const processes = Array.from({ length: 4 }, (_, n) => serve(`process ${n}`));
  for (const { loop } of processes) loop.start();
  await expect.poll(async () => (await counts()).length, { timeout: 10_000 }).toBe(20);
  await Promise.all(processes.map(({ loop }) => loop.stop()));
  expect((await counts()).every(({ n }) => n === 1)).toBe(true);
  expect(processes.flatMap(({ made }) => made).sort()).toEqual(
    Array.from({ length: 20 }, (_, n) => `fn_${n}`).sort(),
  );
  const { rows } = await metastore.query(
    'select id from functions where next_tick_at < now() order by id',
  );
  expect(rows).toEqual([{ id: 'fn_other' }]);
});

test('a tick is skipped, and said to be, while the run before goes on', async () => {
  await schedule('fn_slow', 'here', '* * * * * *', new Date());
  const { loop, made, notes } = serve('only');
  loop.start();
  await expect.poll(() => notes.length, { timeout: 10_000 }).toBeGreaterThanOrEqual(2);
  await loop.stop();
  expect(made).toEqual(['fn_slow']);
  expect(notes[0]).toMatch(/was skipped/);
});

test('a new schedule is heard of at once', async () => {
  const { loop, made } = serve('listening');
  loop.start();
  await schedule('fn_new', 'here', '0 0 1 1 *', new Date(Date.now() - 1000));
  await expect.poll(() => made, { timeout: 5_000 }).toEqual(['fn_new']);
  await loop.stop();
});

test('the runs of a process that is gone are found, those of a living one are not', async () => {
  await schedule('fn_x', 'here', '0 0 1 1 *', new Date(Date.now() + 3_600_000));
  const connection = metastore.pool.options as { host: string };
  const living = createRunOwner({ id: 'living', connection, logger });
  const dying = createRunOwner({ id: 'dying', connection, logger });
  await living.start();
  await dying.start();
  await metastore.query("insert into function_run_owners (id) values ('long gone')");
  for (const owner of ['living', 'dying', 'long gone'])
    await metastore.query(
      `insert into function_runs (id, function_id, version_id, trigger_type, status, run_as, owner)
       values ('run_' || $1::text, 'fn_x', 'ver_x', 'invoke', 'running', 'admin', $1)`,
      [owner],
    );
  expect(await deadOwners(metastore)).toEqual(['long gone']);
  await dying.stop();
  await expect
    .poll(async () => (await deadOwners(metastore)).sort())
    .toEqual(['dying', 'long gone']);
  expect(await failRunsOf(metastore, await deadOwners(metastore), '{}')).toBe(2);
  const { rows } = await metastore.query(
    "select owner from function_runs where status = 'running' and function_id = 'fn_x'",
  );
  expect(rows).toEqual([{ owner: 'living' }]);
  await living.stop();
});

test.each([
  ['*/15 * * * *', '2026-01-31T12:01:00Z', '2026-01-31T12:15:00.000Z'],
  ['30 * * * * *', '2026-01-31T12:01:00Z', '2026-01-31T12:01:30.000Z'],
  ['0 9 * * 1', '2026-01-31T12:00:00Z', '2026-02-02T09:00:00.000Z'],
  ['0 0 29 2 *', '2026-01-31T12:00:00Z', '2028-02-29T00:00:00.000Z'],
  ['nonsense', '2026-01-31T12:00:00Z', undefined],
])('the tick of %s after %s is %s', (expression, from, expected) => {
  expect(nextTickAfter(expression, new Date(from))?.toISOString()).toBe(expected);
});
