import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, expect, it, vi } from 'vitest';
import { OutsideHistory } from '../../engine.ts';
import { diskBytes } from './clone-tree.ts';
import { nowMicros, openTestEngine, type TestEngine } from './open-test-engine.ts';

// On a busy machine a copy and a start take their time.
vi.setConfig({ testTimeout: 120_000 });

let test: TestEngine;
afterEach(() => test.close());

const days = (count: number) => count * 24 * 3_600_000;
const walOf = (id: string) => join(test.fleet.paths(id).data, 'pg_wal');
const historyOf = (id: string, part: string) => join(test.fleet.paths(id).history, part);
const basesOf = (id: string) => readdir(historyOf(id, 'bases')).catch(() => []);
const segments = async (directory: string) =>
  (await readdir(directory).catch(() => [])).filter((name) => /^[0-9A-F]{24}$/.test(name)).length;

/** A hundred rows and 8 MB of log. */
const write = (id: string) =>
  test.query(
    id,
    `create table if not exists t(i int);
     insert into t select generate_series(1, 100);
     select pg_logical_emit_message(true, 'filler', repeat('x', 8 << 20))`,
  );
const count = async (id: string) => (await test.query(id, 'select count(*)::int from t'))[0]!.count;

it('takes a base when the log has grown, and reaches instants before and after it', async () => {
  test = await openTestEngine({ policy: { baseEveryBytes: 30 << 20 } });
  const id = await test.create();
  await write(id);
  const client = await test.connect(id);
  const first = await nowMicros(client);
  await test.history.upkeep.check();
  expect(await basesOf(id)).toEqual([]);

  // Beyond the size of the database itself, which is what a copy of it costs.
  for (let i = 0; i < 6; i++) await write(id);
  const second = await nowMicros(client);
  await test.history.upkeep.check();
  expect(await basesOf(id)).toHaveLength(1);
  expect(await segments(walOf(id))).toBeLessThan(5);
  expect(await segments(historyOf(id, 'wal'))).toBeGreaterThan(30);
  await write(id);
  const third = await nowMicros(client);
  await write(id);

  for (const [at, rows] of [
    [first, 100],
    [second, 700],
    [third, 800],
  ] as const) {
    const child = await test.branch(id, at);
    expect(await count(child)).toBe(rows);
    await test.engine.destroy(child);
  }
});

it('leaves an idle database alone', async () => {
  test = await openTestEngine({ policy: { baseEveryBytes: 1 << 20 } });
  const id = await test.create();
  const client = await test.connect(id, 'postgres');
  const position = async () =>
    (await client.query('select pg_current_wal_insert_lsn()::text as lsn')).rows[0].lsn as string;
  await test.history.upkeep.renew(id);
  const before = await position();
  await test.history.upkeep.check();
  await test.history.upkeep.sweep();
  expect(await position()).toBe(before);
  expect(await basesOf(id)).toHaveLength(1);
});

it('forgets what is older than the window, and says so', async () => {
  let offsetMs = 0;
  test = await openTestEngine({
    policy: { retentionMs: days(7) },
    clock: { now: () => new Date(Date.now() + offsetMs) },
  });
  const id = await test.create();
  await write(id);
  const client = await test.connect(id);
  const old = await nowMicros(client);
  for (let i = 0; i < 3; i++) {
    await write(id);
    await test.history.upkeep.renew(id);
  }
  expect(await basesOf(id)).toHaveLength(3);
  const recent = await nowMicros(client);

  // Within the window everything stays.
  offsetMs = days(6);
  await test.history.upkeep.sweep();
  expect(await basesOf(id)).toHaveLength(3);

  // A week later one base, and the log from there on, is all that any instant needs.
  offsetMs = days(7) + 60_000;
  await test.history.upkeep.sweep();
  expect(await basesOf(id)).toHaveLength(1);
  expect(await segments(historyOf(id, 'wal'))).toBe(0);
  const { from, to } = await test.engine.history(id);
  expect(to.getTime() - from.getTime()).toBeLessThanOrEqual(days(7));
  await expect(test.branch(id, old)).rejects.toThrow(OutsideHistory);

  offsetMs = days(7) - 30_000 - (Date.now() - Number(recent / 1000n));
  const child = await test.branch(id, recent);
  expect(await count(child)).toBe(400);
});

it('keeps a history within its limit by reaching back less', async () => {
  test = await openTestEngine({ policy: { limitBytes: 20 << 20 } });
  const id = await test.create();
  const client = await test.connect(id);
  const old = await nowMicros(client);
  for (let i = 0; i < 5; i++) {
    for (let j = 0; j < 3; j++) await write(id);
    await test.history.upkeep.renew(id);
  }
  const { data, history } = test.fleet.paths(id);
  expect(await diskBytes(history)).toBeLessThan((20 << 20) + (await diskBytes(data)));
  await expect(test.branch(id, old)).rejects.toThrow(OutsideHistory);
  const now = await nowMicros(client);
  expect(await count(await test.branch(id, now))).toBe(1500);
});
