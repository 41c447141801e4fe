// A read-only token cannot write, whatever trick it comes with.
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let owner: Account;
let reader: Account;
let id: string;

beforeAll(async () => {
  service = await startService();
  owner = await service.api.register();
  ({ id } = await owner.database());
  const { body } = await owner.post('/customer/tokens', {
    scope_json: JSON.stringify({ databases: [{ id, access: 'ro' }] }),
  });
  reader = owner.as(body.token);
  // Everything is granted that could make a write succeed if it were tried outside a read-only
  // transaction.
  await owner.sql(
    id,
    `create table t (a int);
     insert into t values (1);
     create table locked (a int);
     create sequence s;
     grant select, insert, update, delete, truncate, references, trigger on t, locked to public; grant all on sequence s to public; grant create, usage on schema public to public;
     create function definer(value int) returns void language sql security definer as 'insert into t values (value)';
     create function volatile_write() returns int language plpgsql as $$ begin insert into t values (99); return 1; end $$;
     create procedure commits() language plpgsql as $$ begin commit; set transaction read write; insert into t values (98); end $$;
     create procedure definer_call() language plpgsql security definer as $$ begin insert into t values (97); end $$;
     create function off() returns text language sql as $$ select set_config('transaction_read_only', 'off', false) $$;
     create view v as select * from t;
     select lo_create(4242); grant all on large object 4242 to public;`,
  );
});
afterAll(() => service?.stop());

const path = () => `/customer/databases/${id}/sql`;
const read = (query: string, params?: unknown[]) =>
  reader.post(path(), { query, ...(params ? { params } : {}) });

const state = async () =>
  (
    await owner.sql(
      id,
      `select (select json_agg(a) from t), (select last_value || is_called::text from s),
              (select count(*) from pg_class where relnamespace = 'public'::regnamespace),
              (select count(*) from pg_largeobject_metadata), encode(lo_get(4242), 'hex'),
              (select count(*) from pg_roles), (select count(*) from pg_db_role_setting)`,
    )
  ).rows;

describe('reads', () => {
  test('work, as the role readonly, in a read-only transaction', async () => {
    expect((await read('select a, current_user, session_user from t')).body.rows).toEqual([
      [1, 'readonly', 'readonly'],
    ]);
    expect((await read('show transaction_read_only')).body.rows).toEqual([['on']]);
    expect((await read('select a from v where a = $1', [1])).body.rows).toEqual([[1]]);
    expect((await read('begin; select 1; commit; select 2')).body.rows).toEqual([[2]]);
    expect((await read("select row(1, 'x')")).body.rows).toEqual([[{ f1: 1, f2: 'x' }]]);
    expect((await read('set work_mem = $$5MB$$; show work_mem')).body.rows).toEqual([['5MB']]);
    expect((await read('explain select * from t')).status).toBe(200);
    expect((await read('savepoint a; select 1/0')).status).toBe(422);
    expect((await read('savepoint a; select 1; rollback to a; select 3')).body.rows).toEqual([[3]]);
    expect((await read('')).status).toBe(400);
    expect((await read('select 1;\n\nselect nope')).body.message).toMatch(/LINE 3: select nope/);
    expect((await read('select 1; select $1::int', [1])).status).toBe(422);
  });

  test('a dump, but nothing that needs more than reading', async () => {
    expect((await reader.post(`/customer/databases/${id}/dump`, {})).status).toBe(200);
    for (const [method, rest, body] of [
      ['POST', 'users', { username: 'x' }],
      ['DELETE', 'users/x', undefined],
      ['POST', 'migrations', { name: 'x', sql: 'select 1' }],
    ] as const)
      expect(
        (
          await service.api.call(method, `/customer/databases/${id}/${rest}`, {
            token: reader.token,
            body,
          })
        ).status,
      ).toBe(403);
    for (const rest of ['users', 'migrations', 'schema', 'observability'])
      expect((await reader.get(`/customer/databases/${id}/${rest}`)).status).toBe(200);
  });
});

const ways = [
  'insert into t values (2)',
  'update t set a = 2',
  'delete from t',
  'truncate t',
  'merge into t using (select 5 x) on true when matched then delete',
  'create table x (a int)',
  'create temp table x (a int)',
  'create view x as select 1',
  'select 1 into x',
  'drop table t',
  'alter table t add b int',
  'comment on table t is $$x$$',
  'grant all on t to readonly',
  'create role x',
  'alter role readonly set work_mem = $$9MB$$',
  'alter role readonly password $$x$$',
  "select nextval('s')",
  "select setval('s', 9)",
  'select lo_create(0)',
  'select lo_unlink(4242)',
  "select lo_put(4242, 0, 'x')",
  "select lo_from_bytea(0, 'x')",
  'select definer(2)',
  'select volatile_write()',
  'call commits()',
  'call definer_call()',
  'do $$ begin insert into t values (3); end $$',
  'do $$ begin commit; insert into t values (3); end $$',
  'do $$ begin rollback; set transaction read write; insert into t values (3); end $$',
  "do $$ begin execute 'insert into t values (3)'; end $$",
  "do $$ begin perform set_config('transaction_read_only', 'off', true); insert into t values (3); end $$",
  'with w as (insert into t values (4) returning a) select * from w',
  'with w as (delete from t returning a) select * from w',
  'explain analyze insert into t values (5)',
  'prepare p as insert into t values (6); execute p',
  'copy t from stdin',
  "copy t from program 'echo 1'",
  'select * from t for update',
  'refresh materialized view v',
  'vacuum t',
  'reindex table t',
  'create index concurrently on t (a)',
];
const preludes = [
  '',
  'commit; ',
  'rollback; ',
  'end; ',
  'abort; ',
  'commit and chain; ',
  'rollback and chain; ',
  'commit; begin; ',
  'commit; begin read write; ',
  'commit; start transaction read write; ',
  'commit and chain; set transaction read write; ',
  'begin read write; ',
  'set transaction read write; ',
  'set transaction_read_only = off; ',
  'set local transaction_read_only to off; ',
  'set session characteristics as transaction read write; commit; begin; ',
  'set default_transaction_read_only = off; commit; ',
  'reset default_transaction_read_only; commit; begin; ',
  'reset all; commit; ',
  'discard all; ',
  "select set_config('transaction_read_only', 'off', false); ",
  'select off(); ',
  'commit; select off(); ',
  'savepoint a; set transaction_read_only = off; ',
  'set role admin; ',
  'set session authorization admin; ',
  'reset session authorization; reset role; commit; ',
  'set standard_conforming_strings = off; select $$\\$$; commit; ',
  "set standard_conforming_strings = off; select '\\'; commit; insert into t values (50); --'; ",
  "select 'x''; commit; --'; commit; ",
  '/* ; */ commit /* ; */ ; -- x\n begin read write; ',
  'prepare transaction $$x$$; ',
  'commit; set session characteristics as transaction read write; ',
];

test('no statement that writes gets through', async () => {
  const before = await state();
  for (const way of ways) {
    const { status } = await read(way);
    // COPY is refused at the door; everything else is a write.
    const expected = way === 'copy t from stdin' && status === 422 ? 422 : 403;
    expect({ way, status }).toEqual({ way, status: expected });
  }
  expect(await state()).toEqual(before);
});

test('no statement in front of it helps', async () => {
  const before = await state();
  const writes = [
    'insert into t values (2)',
    'select definer(2)',
    "select nextval('s')",
    'create table x ()',
  ];
  for (const prelude of preludes)
    for (const write of writes) {
      const { status, text } = await read(prelude + write);
      expect({
        query: prelude + write,
        text,
        isRefused: [403, 422].includes(status),
      }).toMatchObject({
        isRefused: true,
      });
    }
  // What is a write of a plain kind is 403 also behind a harmless trick.
  for (const prelude of [
    'commit; ',
    'rollback; ',
    'commit; begin; ',
    'commit and chain; ',
    'set default_transaction_read_only = off; commit; ',
  ])
    expect({ prelude, status: (await read(`${prelude}insert into t values (2)`)).status }).toEqual({
      prelude,
      status: 403,
    });
  expect(await state()).toEqual(before);
});

test('parameters do not help either', async () => {
  const before = await state();
  for (const [query, params] of [
    ['insert into t values ($1)', [5]],
    ['select definer($1)', [5]],
    ['commit; insert into t values (1)', []],
  ] as const)
    expect([403, 422]).toContain((await read(query, [...params])).status);
  expect((await read('insert into t values ($1)', [5])).status).toBe(403);
  expect(await state()).toEqual(before);
});

test('advisory locks and cursors end with the call', async () => {
  await read('select pg_advisory_lock(1)');
  expect(
    (await owner.sql(id, "select count(*) from pg_locks where locktype = 'advisory'")).rows,
  ).toEqual([[0]]);
});
