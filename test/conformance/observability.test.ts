import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;

beforeAll(async () => {
  service = await startService({ flags: ['--idle-seconds', '1'] });
  account = await service.api.register();
});
afterAll(() => service?.stop());

const observe = async (id: string) =>
  (await account.get(`/customer/databases/${id}/observability`)).body;

test('a fresh database: nothing measured, real sizes', async () => {
  const { id } = await account.database();
  const body = await observe(id);
  expect(body).toEqual({
    window_seconds: 60,
    summary: {
      tps: 0,
      latency_avg_ms: 0,
      latency_p99_ms: 0,
      active_connections: 0,
      database_storage_bytes: expect.any(Number),
      fs_logical_bytes: 0,
    },
    samples: [],
  });
  expect(body.summary.database_storage_bytes).toBeGreaterThan(1_000_000);
});

test('calls over HTTP, grouped by normalised query, slowest first', async () => {
  const { id } = await account.database();
  for (let n = 0; n < 20; n++) await account.sql(id, `select ${n} as n, 'secret ${n}' as s`);
  await account.sql(id, "SELECT   99 as n,\n'other' as s");
  await account.sql(id, 'select pg_sleep(0.3)');
  await account.post(`/customer/databases/${id}/sql`, { query: 'select 1 / 0' });
  await account.post(`/customer/databases/${id}/sql`, { query: 'selec 5' });
  await account.post(`/customer/databases/${id}/sql`, {
    query: "alter role admin password 'hidden secret'",
  });
  const { summary, samples } = await observe(id);
  expect(summary.tps).toBeCloseTo(25 / 60, 1);
  expect(summary.latency_p99_ms).toBeGreaterThanOrEqual(290);
  expect(summary.latency_avg_ms).toBeGreaterThan(0);
  const [slowest] = samples;
  expect(slowest).toEqual({
    query: 'select pg_sleep($1)',
    sample_count: 1,
    error_count: 0,
    latency_avg_ms: expect.any(Number),
    latency_p99_ms: expect.any(Number),
    latency_max_ms: expect.any(Number),
    last_seen_ms_ago: expect.any(Number),
  });
  expect(slowest.latency_max_ms).toBeGreaterThanOrEqual(300);
  expect(slowest.latency_p99_ms / slowest.latency_max_ms).toBeCloseTo(1, 1);
  const many = samples.find((sample: { sample_count: number }) => sample.sample_count > 1);
  expect(many.sample_count).toBe(21);
  expect(many.query).toMatch(/^select \$1 as n, \$2 as s$/i);
  const failed = samples.filter((sample: { error_count: number }) => sample.error_count === 1);
  expect(failed.map((sample: { query: string }) => sample.query).sort()).toEqual([
    'selec ?',
    'select $1 / $2',
  ]);
  expect(JSON.stringify(samples)).not.toMatch(/secret/);
  for (let n = 1; n < samples.length; n++)
    expect(samples[n].latency_avg_ms).toBeLessThanOrEqual(samples[n - 1].latency_avg_ms);
});

test('at most 50 samples, long queries cut', async () => {
  const { id } = await account.database();
  for (let n = 0; n < 60; n++) {
    const letters = String.fromCharCode(97 + (n % 26), 97 + Math.floor(n / 26));
    await account.post(`/customer/databases/${id}/sql`, { query: `table missing_${letters}` });
  }
  await account.sql(id, `select ${'1 + '.repeat(2_000)} 1, pg_sleep(0.5)`);
  const { samples } = await observe(id);
  expect(samples.length).toBe(50);
  expect(samples.map((sample: { query: string }) => sample.query.length)).toContain(512);
});

test('connections and queries of the Postgres port', async () => {
  const { id, connection_string, admin_password } = await account.database();
  const url = new URL(connection_string);
  url.password = encodeURIComponent(admin_password);
  const clients = [new pg.Client(url.href), new pg.Client(url.href)];
  for (const client of clients) client.on('error', () => {});
  await Promise.all(clients.map((client) => client.connect()));
  for (let n = 0; n < 10; n++) await clients[0]!.query(`select ${n} as over_the_port`);
  // The gateway reports in batches.
  while ((await observe(id)).summary.tps < 10 / 60 - 0.01);
  const { summary, samples } = await observe(id);
  expect(summary.active_connections).toBe(2);
  expect(samples).toContainEqual(
    expect.objectContaining({ query: 'select $1 as over_the_port', sample_count: 10 }),
  );
  await Promise.all(clients.map((client) => client.end()));
  while ((await observe(id)).summary.active_connections !== 0);
});

test('storage and files grow as they are used', async () => {
  const { id } = await account.database();
  const before = (await observe(id)).summary;
  await account.sql(
    id,
    'create table big as select repeat(md5(n::text), 100) from generate_series(1, 5000) n; checkpoint',
  );
  await account.sql(id, "select fs.write('/a.bin', repeat('x', 12345)::bytea)");
  const after = (await observe(id)).summary;
  expect(after.database_storage_bytes).toBeGreaterThan(before.database_storage_bytes + 500_000);
  expect(after.fs_logical_bytes).toBe(12_345);
});

test('looking does not keep a database awake, nor wake it again', async () => {
  const { id } = await account.database();
  await account.sql(id, "select fs.write('/b.bin', 'abc'::bytea)");
  const started = async () =>
    (await account.sql(id, 'select pg_postmaster_start_time()')).rows[0][0];
  const first = await started();
  expect((await observe(id)).summary.fs_logical_bytes).toBe(3);
  // Asked all the time, it still falls asleep; once it has been asked after waking, it sleeps on.
  const deadline = Date.now() + 6_000;
  while (Date.now() < deadline) {
    expect((await observe(id)).summary.fs_logical_bytes).toBe(3);
    await delay(200);
  }
  const second = await started();
  expect(second).not.toBe(first);
});

test("another customer's database: 404", async () => {
  const { id } = await account.database();
  const stranger = await service.api.register();
  expect((await stranger.get(`/customer/databases/${id}/observability`)).status).toBe(404);
});
