import { afterAll, beforeAll, describe, expect, test } from 'vitest';
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

const path = () => `/customer/databases/${id}/sql`;
const run = (query: string, params?: unknown[]) =>
  account.post(path(), { query, ...(params ? { params } : {}) });
const rows = async (query: string, params?: unknown[]) => {
  const { status, body, text } = await run(query, params);
  expect({ status, text: status === 200 ? '' : text }).toEqual({ status: 200, text: '' });
  return body.rows;
};

describe('the request', () => {
  test('exactly one of query and file_content', async () => {
    for (const body of [
      {},
      { query: 'select 1', file_content: 'select 1' },
      { query: null },
      { query: 1 },
      { query: ['select 1'] },
      { query: 'select 1', params: {} },
    ])
      expect((await account.post(path(), body)).status).toBe(400);
    expect((await account.post(path(), { file_content: 'select 1' })).status).toBe(200);
    expect((await account.post(path(), { query: null, file_content: 'select 1' })).status).toBe(
      200,
    );
  });

  test('no statement at all: 400', async () => {
    for (const query of ['', '  ', ';;', '-- a comment', '/* another */ ;'])
      expect({ query, status: (await run(query)).status }).toEqual({ query, status: 400 });
  });

  test("another customer's database: 404", async () => {
    const stranger = await service.api.register();
    expect((await stranger.post(path(), { query: 'select 1' })).status).toBe(404);
  });
});

describe('the answer', () => {
  test('columns, rows, row_count, command', async () => {
    expect(
      (await run(`select 1 as n, 'a"b\\c' as "Odd ""name", null::text as nothing`)).body,
    ).toEqual({
      columns: [
        { name: 'n', data_type: 'integer' },
        { name: 'Odd "name', data_type: 'text' },
        { name: 'nothing', data_type: 'text' },
      ],
      rows: [[1, 'a"b\\c', null]],
      row_count: 1,
      command: 'SELECT',
    });
  });

  test('commands and counts of every kind of statement', async () => {
    const expected: [string, string, number, number][] = [
      ['create table kinds (a int, b text)', 'CREATE TABLE', 0, 0],
      ["insert into kinds select n, 'x' from generate_series(1, 5) n", 'INSERT', 5, 0],
      ["insert into kinds values (6, 'y') returning a", 'INSERT', 1, 1],
      ['update kinds set b = b where a > 3', 'UPDATE', 3, 0],
      ['delete from kinds where a = 1', 'DELETE', 1, 0],
      ['select * from kinds', 'SELECT', 5, 5],
      ['table kinds', 'SELECT', 5, 5],
      ['values (1), (2)', 'SELECT', 2, 2],
      ['select', 'SELECT', 1, 1],
      ['create table kinds_copy as select * from kinds', 'SELECT', 5, 0],
      ['explain select 1', 'EXPLAIN', 1, 1],
      ['show server_version', 'SHOW', 1, 1],
      ['begin; select 1; commit', 'COMMIT', 0, 0],
      ['set search_path = public', 'SET', 0, 0],
      ['truncate kinds', 'TRUNCATE TABLE', 0, 0],
      ['do $$ begin perform 1; end $$', 'DO', 0, 0],
      ['drop table kinds, kinds_copy', 'DROP TABLE', 0, 0],
      ['vacuum', 'VACUUM', 0, 0],
    ];
    for (const [query, command, row_count, returned] of expected) {
      const { body } = await run(query);
      expect({
        query,
        command: body.command,
        count: body.row_count,
        rows: body.rows?.length,
      }).toEqual({ query, command, count: row_count, rows: returned });
    }
  });

  test('the last statement answers', async () => {
    expect((await run('select 1 as a; select 2 as b, 3 as c;')).body).toMatchObject({
      columns: [{ name: 'b' }, { name: 'c' }],
      rows: [[2, 3]],
    });
    expect((await run('select 1; create table last_one (); drop table last_one')).body).toEqual({
      columns: [],
      rows: [],
      row_count: 0,
      command: 'DROP TABLE',
    });
    expect((await run('create temp table x (a int); select * from x')).body).toMatchObject({
      columns: [{ name: 'a', data_type: 'integer' }],
      rows: [],
      row_count: 0,
      command: 'SELECT',
    });
  });

  test('names of types, with their modifiers', async () => {
    const { body } = await run(`
      select 1::smallint, 1::int, 1::bigint, 1::oid, 1::real, 1::float8, 1::numeric, 1::numeric(10,2),
             1::numeric(3,-2), true, 'x'::text, 'x'::varchar, 'x'::varchar(10), 'x'::char, 'x'::char(3), 'x'::bpchar,
             'x'::"char", 'x'::name, now(), now()::timestamptz(3), now()::timestamp, now()::date, now()::time(2),
             now()::timetz, '1 day'::interval, '1 day'::interval(2), '1 day'::interval day to minute,
             '{1}'::int[], '{a}'::text[], '{1}'::numeric(5,1)[], '{}'::json, '{}'::jsonb, '\\x00'::bytea,
             '1'::bit(1), '101'::varbit(5), '101'::varbit, gen_random_uuid(), '1.2.3.4'::inet, 'a'::tsvector, '[1,2)'::int4range,
             '{[1,2)}'::int4multirange, 'pg_class'::regclass, null`);
    expect(body.columns.map((column: { data_type: string }) => column.data_type)).toEqual(
      (
        'smallint|integer|bigint|oid|real|double precision|numeric|numeric(10,2)|numeric(3,-2)|boolean|text|' +
        'character varying|character varying(10)|character(1)|character(3)|bpchar|"char"|name|' +
        'timestamp with time zone|timestamp(3) with time zone|timestamp without time zone|date|time(2) without time zone|' +
        'time with time zone|interval|interval(2)|interval day to minute|integer[]|text[]|numeric(5,1)[]|' +
        'json|jsonb|bytea|bit(1)|bit varying(5)|bit varying|uuid|inet|tsvector|int4range|int4multirange|regclass|text'
      ).split('|'),
    );
  });

  test("a customer's own types, made in the same call, in a transaction that is never committed", async () => {
    const { body } = await run(`begin;
      create schema shapes;
      create type shapes.point as (x int, y numeric, "odd ""key" text);
      create domain shapes.tags as text[];
      select array[(1, 2.50, 'a,"b\\')::shapes.point], '{a,NULL}'::shapes.tags, (select p from (select (3, 4, null)::shapes.point p) q)`);
    expect(body).toMatchObject({
      columns: [
        { data_type: 'shapes.point[]' },
        { data_type: 'text[]' },
        { data_type: 'shapes.point' },
      ],
      rows: [
        [[{ x: 1, y: 2.5, 'odd "key': 'a,"b\\' }], ['a', null], { x: 3, y: 4, 'odd "key': null }],
      ],
    });
    expect((await run('select 1 from pg_namespace where nspname = $$shapes$$')).body.rows).toEqual(
      [],
    );
  });

  test('numbers keep all their digits', async () => {
    const { text } = await run(
      "select 9223372036854775807, 12345678901234567890.123456789012345678901234567890, 1e-20::float8, 'NaN'::float8, '-Infinity'::numeric, 1.10, -0::float8",
    );
    expect(text).toContain(
      '[[9223372036854775807,12345678901234567890.123456789012345678901234567890,1e-20,"NaN","-Infinity",1.10,-0]]',
    );
  });

  test('text of every kind survives', async () => {
    const odd = 'tab\t newline\n quote" back\\slash \u0001\u001f\u007f ü 名 😀 \u2028 </script>';
    expect(await rows('select $1::text', [odd])).toEqual([[odd]]);
    expect(await rows(`select U&'\\0041', chr(8) || chr(12), repeat('x"', 100000)`)).toEqual([
      ['A', '\b\f', 'x"'.repeat(100_000)],
    ]);
  });

  test('a row in which every value is long, cut by reads of the socket', async () => {
    const result = await rows(
      "select repeat('ä', n), n from generate_series(1, 3000, 7) n order by n",
    );
    expect(result.every(([text, n]: [string, number]) => text === 'ä'.repeat(n))).toBe(true);
    expect(result.length).toBe(429);
  });
});

describe('errors: 422 with what Postgres says', () => {
  test('position, detail, hint, context', async () => {
    const { status, body } = await run('select 1;\nselect * form pg_class');
    expect(status).toBe(422);
    expect(body).toEqual({
      message: 'syntax error at or near "form"\nLINE 2: select * form pg_class\n                 ^',
    });
    await run('create table errs (a int primary key)');
    expect((await run('insert into errs values (1), (1)')).body.message).toBe(
      'duplicate key value violates unique constraint "errs_pkey"\nDETAIL:  Key (a)=(1) already exists.',
    );
    expect((await run('select nope(1)')).body.message).toMatch(
      /does not exist\nLINE 1: .*\n +\^\nHINT: {2}No/,
    );
    expect((await run("do $$ begin raise 'mine' using hint = 'try'; end $$")).body.message).toMatch(
      /^mine\nHINT: {2}try\nCONTEXT: {2}PL\/pgSQL function/,
    );
  });

  test('all or nothing within one call', async () => {
    await run('create table atomic (a int)');
    expect((await run('insert into atomic values (1); select 1/0')).status).toBe(422);
    expect(await rows('select count(*) from atomic')).toEqual([[0]]);
    expect((await run('insert into atomic values (1); commit; select 1/0')).status).toBe(422);
    expect(await rows('select count(*) from atomic')).toEqual([[1]]);
  });

  test('COPY through this door', async () => {
    await run('create table copied (a int)');
    for (const query of [
      'copy copied from stdin',
      'copy copied to stdout',
      'copy (select 1) to stdout',
      'insert into copied values (1); copy copied from stdin',
    ]) {
      const { status, body } = await run(query);
      expect({ query, status }).toEqual({ query, status: 422 });
      expect(body.message).toMatch(/COPY/);
    }
    expect(await rows('select count(*) from copied')).toEqual([[0]]);
  });

  test('notices do not disturb, nor does ending the own session', async () => {
    expect(await rows("do $$ begin raise notice 'hello'; end $$; select 1")).toEqual([[1]]);
    expect((await run('select pg_terminate_backend(pg_backend_pid())')).status).toBe(422);
    expect(await rows('select 1')).toEqual([[1]]);
  });

  test('a result over the limit', async () => {
    const { status, body } = await run(
      "create table big_result (a int); select repeat('x', 1000) from generate_series(1, 80000)",
    );
    expect(status).toBe(422);
    expect(body.message).toMatch(/64 MiB/);
    expect((await run("select repeat('x', 100 * 1024 * 1024)")).status).toBe(422);
    expect((await run('select 1 from big_result')).status).toBe(422);
    expect((await run("select repeat('x', 20 * 1024 * 1024)")).text.length).toBeGreaterThan(
      20 << 20,
    );
  });

  test('another client_encoding is refused rather than garbled', async () => {
    expect((await run("set client_encoding = latin1; select 'ä'")).status).toBe(422);
    expect(await rows("select 'ä'")).toEqual([['ä']]);
  });
});

describe('params', () => {
  test('bind every kind of value', async () => {
    expect(
      await rows(
        'select $1::int, $2::text, $3::bool, $4::jsonb, $5::int[], $6::text, $7::json, $8::numeric, $9::text[]',
        [
          1,
          "o'hara",
          true,
          { a: [1] },
          [1, null, 3],
          null,
          [1, 'x'],
          '1234567890.5',
          ['a"b', 'c\\d', null],
        ],
      ),
    ).toEqual([
      [
        1,
        "o'hara",
        true,
        { a: [1] },
        [1, null, 3],
        null,
        [1, 'x'],
        1234567890.5,
        ['a"b', 'c\\d', null],
      ],
    ]);
    expect(await rows('select $1 + 1', [41])).toEqual([[42]]);
    expect((await run('insert into nowhere values ($1)', [1])).status).toBe(422);
  });

  test('a wrong number of them, or several statements: 422', async () => {
    expect((await run('select $1::int', [])).status).toBe(422);
    expect((await run('select $1::int', [1, 2])).status).toBe(422);
    expect((await run('select $1::int; select 2', [1])).status).toBe(422);
    expect((await run('select $1::int')).body.message).toMatch(/^there is no parameter \$1/);
    expect((await run('select $1::int', ['x'])).body.message).toMatch(/invalid input syntax/);
    expect((await run('select $1::text', ['a\u0000b'])).status).toBe(422);
  });
});

describe('each call is a clean session', () => {
  test('settings, temporary tables, prepared statements, cursors, roles, seeds', async () => {
    const leftovers: [string, string, unknown][] = [
      ["set work_mem = '7MB'", 'show work_mem', '4MB'],
      ["set my.setting = 'x'", "select current_setting('my.setting', true)", null],
      [
        "select set_config('my.other', 'x', false)",
        "select current_setting('my.other', true)",
        null,
      ],
      ['create temp table left_behind ()', "select to_regclass('left_behind')", null],
      ['set role anon', 'select current_user', 'admin'],
      ['prepare p as select 1', 'select count(*) from pg_prepared_statements', 0],
      [
        'declare c cursor with hold for select 1',
        "select count(*) from pg_cursors where name = 'c'",
        0,
      ],
      [
        'select pg_advisory_lock(7)',
        'select count(*) from pg_locks where locktype = $$advisory$$',
        0,
      ],
      ['listen something', 'select count(*) from pg_listening_channels()', 0],
      ['begin; create table never ()', "select to_regclass('never')", null],
      ["set datestyle = 'German'", 'show datestyle', 'ISO, MDY'],
      ['create sequence if not exists s; select nextval($$s$$)', 'select 1', 1],
    ];
    for (const [before, question, answer] of leftovers) {
      expect({ before, status: (await run(before)).status }).toEqual({ before, status: 200 });
      // Whichever session answers, and there are several.
      const answers = await Promise.all(Array.from({ length: 12 }, () => rows(question)));
      expect({ before, answers }).toEqual({ before, answers: answers.map(() => [[answer]]) });
    }
    expect((await run("select currval('s')")).status).toBe(422);
    await run('select setseed(0.5)');
    const first = await rows('select random()');
    await run('select setseed(0.5)');
    expect(await rows('select random()')).not.toEqual(first);
  });

  test('an open transaction is rolled back, a failed one too', async () => {
    await run('create table open_tx (a int)');
    await run('begin; insert into open_tx values (1)');
    await run('begin; insert into open_tx values (1); select 1/0');
    expect(await rows('select count(*) from open_tx')).toEqual([[0]]);
  });

  test('what ALTER ROLE and ALTER DATABASE set is seen by the next call', async () => {
    await rows('select 1');
    await rows("alter role admin set work_mem = '9MB'");
    expect(await rows('show work_mem')).toEqual([['9MB']]);
    await rows('alter role admin reset work_mem');
    expect(await rows('show work_mem')).toEqual([['4MB']]);
    await rows("do $$ begin execute 'alter database postgres set work_mem = ''5MB'''; end $$");
    expect(await rows('show work_mem')).toEqual([['5MB']]);
    await run('alter database postgres reset work_mem');
  });
});

describe('limits', () => {
  test('a statement ends when its client goes away', async () => {
    const controller = new AbortController();
    const call = service.api.call('POST', path(), {
      token: account.token,
      body: { query: 'select pg_sleep(30) /* gone */' },
      signal: controller.signal,
    });
    const isRunning = async () =>
      (
        await rows("select count(*) from pg_stat_activity where query like '%/* go' || 'ne */'")
      )[0][0];
    while ((await isRunning()) === 0);
    controller.abort();
    await expect(call).rejects.toThrow();
    while ((await isRunning()) !== 0);
  });

  test('many at once share the sessions and all get an answer', async () => {
    const answers = await Promise.all(
      Array.from({ length: 60 }, (_, n) => rows(`select ${n}, pg_sleep(0.01)`)),
    );
    expect(answers.map(([[n]]) => n)).toEqual(Array.from({ length: 60 }, (_, n) => n));
    // Closed ones take a moment to be gone.
    const sessions = async () =>
      (
        await rows(
          "select count(*) from pg_stat_activity where backend_type = 'client backend' and usename = 'admin'",
        )
      )[0][0];
    while ((await sessions()) > 8);
  });
});
