import { createHash } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;
let id: string;

beforeAll(async () => {
  service = await startService();
  account = await service.api.register();
  ({ id } = await account.database());
});
afterAll(() => service?.stop());

const path = () => `/customer/databases/${id}/migrations`;
const apply = (name: unknown, sql: unknown, checksum?: unknown) =>
  account.post(path(), { name, sql, ...(checksum === undefined ? {} : { checksum }) });
const list = async () => (await account.get(path())).body;
const names = async () => (await list()).map((each: { name: string }) => each.name);
const exists = async (table: string) =>
  (await account.sql(id, `select to_regclass('${table}')`)).rows[0][0] !== null;
const digest = (sql: string) => `sha256:${createHash('sha256').update(sql).digest('hex')}`;

test('applied once, recorded with checksum and preview, listed oldest first', async () => {
  const sql = `create table first (a int); -- ${'ü'.repeat(300)}\ninsert into first values (1);`;
  expect(await apply('001_first', sql)).toMatchObject({
    status: 201,
    body: { status: 'applied', name: '001_first' },
  });
  expect((await account.sql(id, 'select a from first')).rows).toEqual([[1]]);
  expect((await apply('000_second', 'create table second (a int)')).status).toBe(201);
  expect(await list()).toEqual([
    {
      name: '001_first',
      checksum: digest(sql),
      applied_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      sql_preview: sql.slice(0, 200),
    },
    expect.objectContaining({ name: '000_second', sql_preview: 'create table second (a int)' }),
  ]);
  const again = await apply('001_first', 'create table other (a int)');
  expect(again.status).toBe(409);
  expect(await exists('other')).toBe(false);
});

test('bodies that are not migrations: 400', async () => {
  for (const body of [
    {},
    { name: 'x' },
    { sql: 'select 1' },
    { name: '', sql: 'select 1' },
    { name: 'x', sql: '' },
    { name: 1, sql: 'select 1' },
    { name: 'x', sql: 'select 1', checksum: 1 },
  ])
    expect({ body, status: (await account.post(path(), body)).status }).toEqual({
      body,
      status: 400,
    });
});

test('the checksum is verified', async () => {
  const sql = 'create table summed (a int)';
  for (const wrong of ['sha256:00', digest(`${sql} `), 'md5:x', digest(sql).slice(7)])
    expect({ wrong, status: (await apply('summed', sql, wrong)).status }).toEqual({
      wrong,
      status: 422,
    });
  expect(await exists('summed')).toBe(false);
  expect((await apply('summed', sql, digest(sql))).status).toBe(201);
});

test("a failing migration: 422 with Postgres's words, nothing applied", async () => {
  const failing: [string, RegExp][] = [
    [
      'create table bad (a int); selec 1',
      /^syntax error at or near "selec"\nLINE 1: create table bad \(a int\); selec 1\n/,
    ],
    ['create table bad (a int); insert into bad values (1/0)', /division by zero/],
    [
      'create table bad (a int); create index concurrently on bad (a)',
      /cannot run inside a transaction block/,
    ],
    ['create table bad (a int); vacuum', /cannot run inside a transaction block/],
    ['create table bad (a int); commit', /COMMIT cannot be used/],
    ['create table bad (a int); COMMIT AND CHAIN; select 1', /COMMIT cannot be used/],
    ['create table bad (a int); /* ; */ rollback; select 1', /ROLLBACK cannot be used/],
    ['begin; create table bad (a int); end', /BEGIN cannot be used/],
    ['create table bad (a int); do $$ begin commit; end $$', /invalid transaction termination/],
    [
      "create table bad (a int); set standard_conforming_strings = off; select 'x\\'; commit; --'",
      /./,
    ],
    ['create table bad (a int); copy bad from stdin', /COPY/],
    ['create table bad (a int); copy bad to stdout', /COPY/],
    [
      'create table bad (a int unique deferrable initially deferred); insert into bad values (1), (1)',
      /duplicate key/,
    ],
    [
      "create table bad (a int); select coppice.finish_migration('x', '1', 'fake', 'x', 'x')",
      /permission denied/,
    ],
    ['create table bad (a int); delete from coppice.migrations', /permission denied/],
    [
      "create table bad (a int); insert into coppice.migrations (name, checksum, sql_preview) values ('fake', '', '')",
      /permission denied/,
    ],
    ['create table bad (a int); set role postgres', /permission denied/],
    ['create table bad (a int); set session authorization postgres', /permission denied/],
    ['create table bad (a int); select pg_terminate_backend(pg_backend_pid())', /./],
  ];
  const before = await names();
  for (const [sql, message] of failing) {
    const { status, body } = await apply('bad', sql);
    expect({ sql, status }).toEqual({ sql, status: 422 });
    expect(body.message).toMatch(message);
  }
  expect(await exists('bad')).toBe(false);
  expect(await names()).toEqual(before);
  expect((await apply('bad', 'create table bad (a int)')).status).toBe(201);
});

test('what a migration may do: savepoints, functions with bodies, other roles, no statement at all', async () => {
  const sql = `
    savepoint a; create table sp (a int); rollback to savepoint a; release savepoint a;
    create function tricky() returns int language sql begin atomic; select case when true then 1 else 2 end; end;
    create function dollar() returns text language plpgsql as $f$ begin return 'commit;'; end; $f$;
    create table "odd;name" (a text default ';commit;');
    create role maker; grant create on schema public to maker; set role maker; create table made (a int);
    set search_path = '';`;
  expect(await apply('allowed', sql)).toMatchObject({ status: 201 });
  expect(await exists('sp')).toBe(false);
  expect(await exists('"odd;name"')).toBe(true);
  expect((await account.sql(id, 'select tricky(), dollar()')).rows).toEqual([[1, 'commit;']]);
  expect(
    (await account.sql(id, "select tableowner from pg_tables where tablename = 'made'")).rows,
  ).toEqual([['maker']]);
  expect((await apply('nothing', '-- only a comment')).status).toBe(201);
  expect((await account.sql(id, 'select current_user')).rows).toEqual([['admin']]);
});

test('many of one name at once: one is applied', async () => {
  const answers = await Promise.all(
    Array.from({ length: 12 }, (_, n) => apply('race', `create table race_${n} (a int)`)),
  );
  const statuses = answers.map((answer) => answer.status).sort();
  expect(statuses).toEqual([201, ...Array.from({ length: 11 }, () => 409)]);
  const { rows } = await account.sql(
    id,
    "select count(*) from pg_class where relname like 'race\\_%'",
  );
  expect(rows).toEqual([[1]]);
});

test('different ones at once take turns and are all applied', async () => {
  await account.sql(id, 'create table turns (n int, at timestamptz default clock_timestamp())');
  const answers = await Promise.all(
    Array.from({ length: 8 }, (_, n) =>
      apply(
        `turn ${n}`,
        `insert into turns select ${n} from pg_sleep(0.02); insert into turns values (${n})`,
      ),
    ),
  );
  expect(answers.map((answer) => answer.status)).toEqual(Array.from({ length: 8 }, () => 201));
  const { rows } = await account.sql(id, 'select n from turns order by at');
  const order = rows.map(([n]: [number]) => n);
  for (let at = 0; at < order.length; at += 2) expect(order[at]).toBe(order[at + 1]);
});

test("another customer's database: 404", async () => {
  const stranger = await service.api.register();
  expect((await stranger.get(path())).status).toBe(404);
  expect((await stranger.post(path(), { name: 'x', sql: 'select 1' })).status).toBe(404);
});
