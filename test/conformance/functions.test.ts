// Longer than other files: every field and status of functions against one running service.
import { createHash } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Account, Answer } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;
let databaseId: string;
let path: string;
let web: Server;
let webUrl: string;
const served = new Map<string, string | Buffer>();

beforeAll(async () => {
  web = createServer((request, response) => {
    const content = served.get(request.url ?? '');
    if (content === undefined) response.writeHead(404).end();
    else response.end(content);
  });
  await new Promise<void>((done) => web.listen(0, '127.0.0.1', done));
  webUrl = `http://127.0.0.1:${(web.address() as AddressInfo).port}`;
  service = await startService({ flags: ['--log-level', 'debug'] });
  account = await service.api.register();
  databaseId = (await account.database()).id;
  path = `/customer/databases/${databaseId}/functions`;
});
afterAll(async () => {
  await service.stop();
  web.close();
});

const dataUrl = (source: string) =>
  `data:text/javascript;base64,${Buffer.from(source).toString('base64')}`;
let lastName = 0;

const deploy = (source: string, more: object = {}): Promise<Answer> =>
  account.post(path, {
    name: `f${++lastName}`,
    entrypoint: 'index.handler',
    bundle_ref: dataUrl(source),
    ...more,
  });

/** Deploys and gives the function's id; fails the test otherwise. */
async function deployed(source: string, more: object = {}): Promise<string> {
  const { status, body, text } = await deploy(source, more);
  expect(status, text).toBe(201);
  return body.function.id;
}
const invoke = (id: string, input?: object, more: object = {}): Promise<Answer> =>
  account.post(`${path}/${id}/invoke`, { input, ...more });

/** The parsed result of a run that must complete. */
async function resultOf(id: string, input?: object): Promise<any> {
  const { body } = await invoke(id, input);
  expect(body).toMatchObject({ status: 'completed' });
  return JSON.parse(body.result_json);
}

describe('deploying', () => {
  test('answers with the function and its version, and lists it', async () => {
    const { status, body } = await deploy('export const handler = () => 1', { name: 'first' });
    expect(status).toBe(201);
    expect(body).toEqual({
      function: {
        id: expect.stringMatching(/^fn_[a-z0-9]+$/),
        name: 'first',
        enabled: true,
        visibility: 'private',
        created_at: expect.stringMatching(/Z$/),
        updated_at: expect.stringMatching(/Z$/),
      },
      version: {
        id: expect.stringMatching(/^ver_[a-z0-9]+$/),
        version: 1,
        entrypoint: 'index.handler',
        bundle_ref: dataUrl('export const handler = () => 1'),
        bundle_digest: `sha256:${createHash('sha256').update('export const handler = () => 1').digest('hex')}`,
        run_as: 'authenticated',
        bypass_rls: false,
        created_at: expect.stringMatching(/Z$/),
      },
    });
    expect((await account.get(path)).body).toContainEqual(body.function);
  });

  test('an existing name makes the next version, which calls go to at once', async () => {
    const id = await deployed('export const handler = () => "one"', { name: 'again' });
    expect(await resultOf(id)).toBe('one');
    const { body } = await deploy('export const handler = () => "two"', {
      name: 'again',
      visibility: 'public',
    });
    expect(body.function).toMatchObject({ id, visibility: 'public' });
    expect(body.version.version).toBe(2);
    expect(await resultOf(id)).toBe('two');
  });

  test('many who deploy one name at once get versions one after the other', async () => {
    const answers = await Promise.all(
      Array.from({ length: 8 }, (_, n) =>
        deploy(`export const handler = () => ${n}`, { name: 'race' }),
      ),
    );
    expect(answers.map(({ body }) => body.version.version).sort()).toEqual([
      1, 2, 3, 4, 5, 6, 7, 8,
    ]);
    expect(new Set(answers.map(({ body }) => body.function.id)).size).toBe(1);
  });

  test('every field of the interface is taken', async () => {
    await account.post(`/customer/databases/${databaseId}/secrets`, { name: 'TAKEN', value: 'v' });
    const { status, body } = await deploy('export const handler = () => 1', {
      bundle_digest: `sha256:${createHash('sha256').update('export const handler = () => 1').digest('hex')}`,
      run_as: 'admin',
      bypass_rls: true,
      limits: { timeout_ms: 5000, memory_mb: 256 },
      network_allowlist: ['example.com', '*.example.org:443'],
      fsx_scope: { read: ['/in'], write: ['/out'] },
      secret_bindings: ['TAKEN'],
      cron_schedule: '0 3 * * *',
      visibility: 'public',
      unknown_field: true,
    });
    expect(status).toBe(201);
    expect(body.version).toMatchObject({ run_as: 'admin', bypass_rls: true });
  });

  test.each([
    ['no name', { name: undefined }],
    ['a name with a slash', { name: 'a/b' }],
    ['no entrypoint', { entrypoint: undefined }],
    ['an entrypoint without a handler', { entrypoint: 'index' }],
    ['no bundle_ref', { bundle_ref: undefined }],
    ['a bundle_ref that is no string', { bundle_ref: 1 }],
    ['a timeout of text', { limits: { timeout_ms: '5' } }],
    ['a timeout over the limit', { limits: { timeout_ms: 300_001 } }],
    ['a visibility that is none', { visibility: 'secret' }],
    ['a bypass_rls of text', { bypass_rls: 'true' }],
    ['a scope that is no object', { fsx_scope: [] }],
    ['an allowlist that is no array', { network_allowlist: 'example.com' }],
  ])('%s: 400', async (_name, change) => {
    expect((await deploy('export const handler = () => 1', change)).status).toBe(400);
  });

  test.each([
    ['a cron expression of four fields', { cron_schedule: '* * * *' }],
    ['a cron expression of words', { cron_schedule: 'every day at noon !' }],
    ['an hour that is none', { cron_schedule: '0 25 * * *' }],
    ['a date that never comes', { cron_schedule: '0 0 31 2 *' }],
    ['an empty cron expression', { cron_schedule: '' }],
    ['a role that is not there', { run_as: 'nobody_at_all' }],
    ['our own superuser', { run_as: 'postgres' }],
    ['a role of Postgres', { run_as: 'pg_read_all_data' }],
    ['a secret that is not there', { secret_bindings: ['NOT_THERE'] }],
    ['another digest', { bundle_digest: `sha256:${'0'.repeat(64)}` }],
    ['a digest that is none', { bundle_digest: 'md5:1234' }],
    ['an allowlist entry that is none', { network_allowlist: ['not a host'] }],
    ['a scope that leads up', { fsx_scope: { read: ['/a/../..'] } }],
    ['a data: URL without data', { bundle_ref: 'data:text/javascript' }],
    ['base64 that is none', { bundle_ref: 'data:text/javascript;base64,§§§' }],
    ['code that does not parse', { bundle_ref: 'data:text/javascript,export const = 1' }],
  ])('%s: 422', async (_name, change) => {
    const answer = await deploy('export const handler = () => 1', change);
    expect(answer.status, answer.text).toBe(422);
    expect(Object.keys(answer.body)).toEqual(['message']);
  });

  test("another account's database: 404; a read-only token may list and not deploy", async () => {
    const stranger = await service.api.register();
    expect((await stranger.get(path)).status).toBe(404);
    const scope_json = JSON.stringify({ databases: [{ id: databaseId, access: 'ro' }] });
    const { body } = await account.post('/customer/tokens', { scope_json });
    const reader = account.as(body.token);
    expect((await reader.get(path)).status).toBe(200);
    expect(
      (await reader.post(path, { name: 'x', entrypoint: 'a.b', bundle_ref: 'data:,1' })).status,
    ).toBe(403);
  });
});

describe('bundles', () => {
  const handler = 'export const handler = () => "from afar"';

  test('from the files of the database', async () => {
    await account.sql(
      databaseId,
      `select fs.write_text('/code/main.ts', 'export const handler = (): string => "typed"', parents => true)`,
    );
    for (const bundle_ref of ['fs:/code/main.ts', '/code/main.ts'])
      expect(await resultOf(await deployed('', { bundle_ref }))).toBe('typed');
  });

  test('from the web', async () => {
    served.set('/f.js', handler);
    expect(await resultOf(await deployed('', { bundle_ref: `${webUrl}/f.js` }))).toBe('from afar');
  });

  test('what was fetched stays, whatever becomes of its source', async () => {
    served.set('/changing.js', handler);
    const id = await deployed('', { bundle_ref: `${webUrl}/changing.js` });
    served.set('/changing.js', 'export const handler = () => "changed"');
    expect(await resultOf(id)).toBe('from afar');
  });

  test('one that is not there yet is tried again at each call', async () => {
    for (const [bundle_ref, provide] of [
      [
        'fs:/code/later.js',
        () =>
          account.sql(
            databaseId,
            `select fs.write_text('/code/later.js', $$${handler}$$, parents => true)`,
          ),
      ],
      [`${webUrl}/later.js`, async () => served.set('/later.js', handler)],
    ] as const) {
      const answer = await deploy('', { bundle_ref });
      expect(answer.status).toBe(201);
      expect(answer.body.version.bundle_digest).toBeNull();
      const id = answer.body.function.id;
      const { status, body } = await invoke(id);
      expect([status, body.status]).toEqual([200, 'failed']);
      expect(JSON.parse(body.result_json).error.message).toMatch(/later\.js|404/);
      await provide();
      expect(await resultOf(id)).toBe('from afar');
    }
  });

  test('a promised digest is held also then', async () => {
    const bundle_digest = `sha256:${'a'.repeat(64)}`;
    const id = await deployed('', { bundle_ref: 'fs:/code/promised.js', bundle_digest });
    await account.sql(
      databaseId,
      `select fs.write_text('/code/promised.js', $$${handler}$$, parents => true)`,
    );
    const { body } = await invoke(id);
    expect(body.status).toBe('failed');
    expect(body.result_json).toMatch(/bundle_digest does not match/);
  });

  test('a handler that is not exported fails with that reason', async () => {
    const { body } = await invoke(await deployed('export const other = () => 1'));
    expect(body.status).toBe('failed');
    expect(JSON.parse(body.result_json).error.message).toMatch(
      /does not export a function named handler/,
    );
  });
});

describe('invoking', () => {
  test('gives the result, and a run that can be read back', async () => {
    const id = await deployed(
      'export const handler = (input) => { console.log("got", input); console.warn("careful"); return { twice: input.n * 2 } }',
    );
    const { status, body } = await invoke(id, { n: 21 });
    expect(status).toBe(200);
    expect(body).toEqual({
      run_id: expect.stringMatching(/^run_/),
      function_id: id,
      version_id: expect.stringMatching(/^ver_/),
      status: 'completed',
      result_json: '{"twice":42}',
    });
    const run = await account.get(`${path}/${id}/runs/${body.run_id}`);
    expect(run.body).toEqual({
      id: body.run_id,
      function_id: id,
      version_id: body.version_id,
      trigger_type: 'invoke',
      status: 'completed',
      run_as: 'authenticated',
      attempt: 1,
      created_at: expect.stringMatching(/Z$/),
    });
    const logs = await account.get(`${path}/${id}/runs/${body.run_id}/logs`);
    expect(logs.body.run_id).toBe(body.run_id);
    const stamp = '\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}Z';
    expect(logs.body.logs).toMatch(
      new RegExp(`^${stamp} \\[INFO\\] got \\{ n: 21 \\}\n${stamp} \\[WARN\\] careful$`),
    );
  });

  test('without a body the input is an empty object', async () => {
    const id = await deployed('export const handler = (input) => input');
    expect(JSON.parse((await account.post(`${path}/${id}/invoke`)).body.result_json)).toEqual({});
  });

  test.each([
    ['throwing', 'throw new RangeError("too far")', { name: 'RangeError', message: 'too far' }],
    ['rejecting', 'return Promise.reject(new Error("no"))', { name: 'Error', message: 'no' }],
    [
      'exiting',
      'Deno.exit(1)',
      { name: 'ExitError', message: expect.stringContaining('exit code 1') },
    ],
  ])('%s is status failed with the error, and HTTP 200', async (_name, body, error) => {
    const answer = await invoke(await deployed(`export const handler = () => { ${body} }`));
    expect([answer.status, answer.body.status]).toEqual([200, 'failed']);
    expect(JSON.parse(answer.body.result_json)).toEqual({ error });
  });

  test('too slow is timed_out, and what was printed is kept', async () => {
    const id = await deployed(
      'export const handler = () => { console.log("so far"); while (true); }',
      {
        limits: { timeout_ms: 200 },
      },
    );
    const { body } = await invoke(id);
    expect(body.status).toBe('timed_out');
    expect(JSON.parse(body.result_json).error).toEqual({
      name: 'TimeoutError',
      message: 'the function ran longer than its limit of 200 ms',
    });
    const logs = await account.get(`${path}/${id}/runs/${body.run_id}/logs`);
    expect(logs.body.logs).toMatch(/\[INFO\] so far/);
  });

  test('runs are listed newest first, up to a limit', async () => {
    const id = await deployed('export const handler = ({ n }) => n');
    const ids: string[] = [];
    for (let n = 0; n < 5; n++) ids.unshift((await invoke(id, { n })).body.run_id);
    const listed = await account.get(`${path}/${id}/runs`);
    expect(listed.body.map((run: { id: string }) => run.id)).toEqual(ids);
    const two = await account.get(`${path}/${id}/runs?limit=2`);
    expect(two.body.map((run: { id: string }) => run.id)).toEqual(ids.slice(0, 2));
    for (const limit of ['0', '1001', '-1', 'x', '1.5'])
      expect((await account.get(`${path}/${id}/runs?limit=${limit}`)).status, limit).toBe(400);
  });

  test('the same idempotency key gives the first answer, also while it runs', async () => {
    const id = await deployed(
      'let n = 0; export const handler = async () => { await new Promise((r) => setTimeout(r, 200)); return Math.random() }',
    );
    const answers = await Promise.all(
      Array.from({ length: 5 }, () => invoke(id, {}, { idempotency_key: 'one' })),
    );
    expect(new Set(answers.map(({ body }) => body.result_json)).size).toBe(1);
    expect(new Set(answers.map(({ body }) => body.run_id)).size).toBe(1);
    expect((await invoke(id, { other: 1 }, { idempotency_key: 'one' })).body).toEqual(
      answers[0]!.body,
    );
    expect((await invoke(id, {}, { idempotency_key: 'two' })).body.run_id).not.toBe(
      answers[0]!.body.run_id,
    );
    expect((await account.get(`${path}/${id}/runs`)).body).toHaveLength(2);
  });

  test('what is not there: 404; what is not allowed: 400', async () => {
    const id = await deployed('export const handler = () => 1');
    const { body } = await invoke(id);
    const other = (await account.database()).id;
    for (const answer of [
      await invoke('fn_nope'),
      await account.get(`${path}/fn_nope/runs`),
      await account.get(`${path}/${id}/runs/run_nope`),
      await account.get(`${path}/${id}/runs/run_nope/logs`),
      await account.post(`/customer/databases/${other}/functions/${id}/invoke`, {}),
      await account.get(`/customer/databases/${other}/functions/${id}/runs/${body.run_id}`),
      await (await service.api.register()).post(`${path}/${id}/invoke`, {}),
    ])
      expect(answer.status).toBe(404);
    for (const wrong of [
      { input: 'text' },
      { input: [1] },
      { input: 1 },
      { idempotency_key: 1 },
      { idempotency_key: '' },
    ])
      expect(
        (await account.post(`${path}/${id}/invoke`, wrong)).status,
        JSON.stringify(wrong),
      ).toBe(400);
    expect((await account.get(`${path}/${id}/runs`)).body).toHaveLength(1);
  });

  test('a result of any JSON kind', async () => {
    const id = await deployed('export const handler = ({ v }) => v');
    for (const v of [
      null,
      0,
      '',
      'é\u0000\ud83d\ude00',
      [1, [2]],
      { a: { b: null } },
      1e300,
      false,
    ])
      expect(await resultOf(id, { v })).toEqual(v);
    const nothing = await invoke(await deployed('export const handler = () => {}'));
    expect(nothing.body.result_json).toBe('null');
  });

  test('too many at once: 429 with Retry-After', async () => {
    const strict = await startService({
      flags: ['--invocation-burst', '3', '--invocations-per-second', '0.5'],
    });
    try {
      const caller = await strict.api.register();
      const functions = `/customer/databases/${(await caller.database()).id}/functions`;
      const { body } = await caller.post(functions, {
        name: 'f',
        entrypoint: 'index.handler',
        bundle_ref: dataUrl('export const handler = () => 1'),
      });
      const answers = [];
      for (let n = 0; n < 5; n++)
        answers.push(await caller.post(`${functions}/${body.function.id}/invoke`, {}));
      expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 429, 429]);
      expect(Number(answers[3]!.headers.get('retry-after'))).toBeGreaterThan(0);
    } finally {
      await strict.stop();
    }
  });
});

describe('ctx.db', () => {
  beforeAll(async () => {
    await account.sql(
      databaseId,
      `create table notes (id int generated always as identity primary key, owner text, body text);
       insert into notes (owner, body) values ('ann', 'a'), ('bob', 'b');
       alter table notes enable row level security;
       create policy own on notes to authenticated using (owner = coalesce(auth.uid(), 'ann')) with check (true);
       create role writer nologin; grant select, insert on notes to writer;
       create policy writers on notes to writer using (owner = 'bob');`,
    );
  });

  test('queries run as the role, under row-level security', async () => {
    const source = `export const handler = async (_, ctx) => [
      (await ctx.db.query('select current_user as who')).rows[0].who,
      (await ctx.db.query('select body from notes order by id')).rows.map((row) => row.body)]`;
    expect(await resultOf(await deployed(source))).toEqual(['authenticated', ['a']]);
    expect(await resultOf(await deployed(source, { run_as: 'writer' }))).toEqual(['writer', ['b']]);
    const [, all] = await resultOf(await deployed(source, { bypass_rls: true }));
    expect(all).toEqual(['a', 'b']);
  });

  test.each(['authenticated', 'writer'])(
    'there is no way back to another role from %s',
    async (run_as) => {
      const source = `export const handler = async (_, ctx) => {
      const seen = [];
      for (const sql of ['reset role', 'reset session authorization', 'set role postgres', 'set role admin', 'set session authorization postgres', 'set session authorization admin', 'set role none'])
        for (const check of ['select current_user as u, (select rolsuper or rolbypassrls from pg_roles where rolname = current_user) as s'])
          try { seen.push(await ctx.db.transaction(async (tx) => { await tx.query(sql); const { u, s } = (await tx.query(check)).rows[0]; return u + ' ' + s })) } catch (error) { seen.push('refused') }
      return [...new Set(seen)] }`;
      const seen = (await resultOf(await deployed(source, { run_as }))) as string[];
      for (const entry of seen)
        expect(entry).toMatch(/^(refused|authenticated false|writer false|coppice_as_\d+ false)$/);
    },
  );

  test('bypassing row-level security gives no other right, and what it makes is its role’s', async () => {
    const denied = await invoke(
      await deployed(
        "export const handler = async (_, ctx) => (await ctx.db.query('create table x (a int)')).command",
        { bypass_rls: true },
      ),
    );
    expect(denied.body.status).toBe('failed');
    expect(denied.body.result_json).toMatch(/permission denied/);
    const made = await deployed(
      "export const handler = async (_, ctx) => (await ctx.db.query('create table made (a int)')).command",
      { bypass_rls: true, run_as: 'admin' },
    );
    expect(await resultOf(made)).toBe('CREATE');
    await account.sql(databaseId, 'drop table made');
    const users = await account.get(`/customer/databases/${databaseId}/users`);
    expect(users.text).not.toMatch(/coppice/);
  });

  test('values have the types of the language', async () => {
    const source = `export const handler = async (_, ctx) => {
      const { rows: [row], rowCount, command } = await ctx.db.query(
        "select 1::int2 i, 9007199254740993::int8 big, 5::int8 small, 1.50::numeric n, 1.5::float8 f, true t, null nil, 'x' s, '{\\"a\\":[1]}'::jsonb j, '2026-01-31 12:00:00+00'::timestamptz ts, '2026-01-31'::date d, '\\\\x00ff'::bytea b, array[1,2] a, array['x','y'] txt, 'NaN'::float8 nan, 'infinity'::timestamptz inf, 1 as \\"__proto__\\"");
      return { ...row, isDate: row.ts instanceof Date, bytes: [...row.b], b: row.b.constructor.name, own: Object.keys(row).includes('__proto__'), rowCount, command } }`;
    expect(await resultOf(await deployed(source))).toEqual({
      i: 1,
      big: '9007199254740993',
      small: 5,
      n: '1.50',
      f: 1.5,
      t: true,
      nil: null,
      s: 'x',
      j: { a: [1] },
      ts: '2026-01-31T12:00:00.000Z',
      d: '2026-01-31',
      b: 'Uint8Array',
      a: [1, 2],
      txt: ['x', 'y'],
      nan: 'NaN',
      inf: 'infinity',
      isDate: true,
      bytes: [0, 255],
      own: true,
      rowCount: 1,
      command: 'SELECT',
      ['__proto__']: 1,
    });
    const parameters = `export const handler = async (_, ctx) => {
      const all = [1, 2.5, 'x', true, null, undefined, { a: 1 }, [1, 2], new Date('2026-01-31T12:00:00Z'), new Uint8Array([1, 255]), 10n, ['a', null, 'b"c']];
      return (await ctx.db.query('select $1::int a, $2::float8 b, $3::text c, $4::bool d, $5::text e, $6::text f, $7::jsonb g, $8::int[] h, $9::timestamptz i, encode($10::bytea, $$hex$$) j, $11::int8 k, $12::text[] l', all)).rows[0] }`;
    expect(await resultOf(await deployed(parameters))).toEqual({
      a: 1,
      b: 2.5,
      c: 'x',
      d: true,
      e: null,
      f: null,
      g: { a: 1 },
      h: [1, 2],
      i: '2026-01-31T12:00:00.000Z',
      j: '01ff',
      k: 10,
      l: ['a', null, 'b"c'],
    });
  });

  test('an SQL error can be caught with its code', async () => {
    const source =
      "export const handler = async (_, ctx) => { try { await ctx.db.query('select * from missing') } catch (error) { return [error instanceof Error, error.name, error.code, error.message] } }";
    expect(await resultOf(await deployed(source))).toEqual([
      true,
      'DatabaseError',
      '42P01',
      'relation "missing" does not exist',
    ]);
  });

  test('transactions commit, roll back, and are rolled back when left open', async () => {
    await account.sql(databaseId, 'create table t (a int)');
    const source = `export const handler = async (_, ctx) => {
      await ctx.db.transaction(async (tx) => { await tx.query('insert into t values (1)'); await tx.query('insert into t values (2)'); });
      await ctx.db.transaction(async (tx) => { await tx.query('insert into t values (3)'); throw new Error('no'); }).catch(() => {});
      const failed = await ctx.db.transaction(async (tx) => { await tx.query('insert into t values (4)'); await tx.query('select nonsense').catch(() => {}); }).then(() => 'committed', (error) => error.message);
      let open; const opened = new Promise((r) => { open = r });
      ctx.db.transaction(async (tx) => { await tx.query('insert into t values (5)'); open(); await new Promise(() => {}); });
      await opened;
      return failed }`;
    expect(await resultOf(await deployed(source))).toMatch(/rolled back/);
    await expect
      .poll(async () => (await account.sql(databaseId, 'select a from t order by a')).rows)
      .toEqual([[1], [2]]);
    const left = await account.sql(
      databaseId,
      "select count(*) from pg_stat_activity where state like 'idle in transaction%'",
    );
    expect(left.rows).toEqual([[0]]);
  });

  test('a statement that outlives its run is stopped', async () => {
    const id = await deployed(
      "export const handler = async (_, ctx) => { await ctx.db.query('set statement_timeout = 0; select pg_sleep(600)') }",
      { limits: { timeout_ms: 300 } },
    );
    expect((await invoke(id)).body.status).toBe('timed_out');
    await expect
      .poll(
        async () =>
          (
            await account.sql(
              databaseId,
              "select count(*) from pg_stat_activity where query like '%pg_sleep(600)%' and pid <> pg_backend_pid()",
            )
          ).rows,
        { timeout: 10_000 },
      )
      .toEqual([[0]]);
  });

  test('a result that is too large is refused, and the service goes on', async () => {
    const id = await deployed(
      'export const handler = async (_, ctx) => (await ctx.db.query("select repeat(\'x\', 100000000)")).rows.length',
    );
    const { body } = await invoke(id);
    expect(body.status).toBe('failed');
    expect(body.result_json).toMatch(/larger than 16 MiB/);
    expect(
      await resultOf(
        await deployed(
          "export const handler = async (_, ctx) => (await ctx.db.query('select 1 as one')).rows",
        ),
      ),
    ).toEqual([{ one: 1 }]);
  });
});

describe('ctx.secrets', () => {
  test('holds only what is bound, in its current value, and never shows in logs or errors', async () => {
    const secrets = `/customer/databases/${databaseId}/secrets`;
    await account.post(secrets, { name: 'MINE', value: 'first-value-of-mine' });
    await account.post(secrets, { name: 'OTHER', value: 'belongs-to-another' });
    await account.post(secrets, {
      name: 'PEM',
      value: '-----BEGIN KEY-----\nabcdefghijkl\nmnopqrstuvwx\n-----END KEY-----',
    });
    const id = await deployed(
      `export const handler = ({ fail }, { secrets }) => {
        console.log('it is', secrets.MINE, { in: secrets.MINE }, secrets.PEM, JSON.stringify(secrets), btoa(secrets.MINE), encodeURIComponent(secrets.MINE));
        if (fail) throw new Error('could not use ' + secrets.MINE);
        return [Object.keys(secrets).sort(), secrets.MINE.length, secrets.OTHER ?? null, Object.isFrozen(secrets)] }`,
      { secret_bindings: ['MINE', 'PEM'] },
    );
    expect(await resultOf(id)).toEqual([['MINE', 'PEM'], 19, null, true]);
    await account.put(`${secrets}/MINE`, { value: 'second-value' });
    expect((await resultOf(id))[1]).toBe(12);
    const failed = await invoke(id, { fail: true });
    expect(JSON.parse(failed.body.result_json).error.message).toBe('could not use [redacted]');
    for (const { id: run } of (await account.get(`${path}/${id}/runs`)).body) {
      const { logs } = (await account.get(`${path}/${id}/runs/${run}/logs`)).body;
      expect(logs).toMatch(/\[redacted\]/);
      expect(logs).not.toMatch(/first-value|second-value|abcdefghijkl|mnopqrst|another/);
      expect(logs).not.toContain(Buffer.from('second-value').toString('base64'));
    }
    expect(service.log()).not.toMatch(/first-value-of-mine|second-value/);
    await account.delete(`${secrets}/MINE`);
    const gone = await deployed('export const handler = (_, { secrets }) => Object.keys(secrets)', {
      secret_bindings: ['PEM'],
    });
    expect(await resultOf(gone)).toEqual(['PEM']);
  });
});

describe('ctx.fs', () => {
  test('works inside its scope', async () => {
    await account.sql(
      databaseId,
      `select fs.write_text('/in/a.txt', 'content of a', parents => true), fs.mkdir('/out'), fs.mkdir('/secret'), fs.write_text('/secret/s.txt', 'secret')`,
    );
    const source = `export const handler = async (_, { fs }) => {
      await fs.write('/out/copy.txt', await fs.read('/in/a.txt'));
      await fs.append('/out/copy.txt', '!');
      await fs.mkdir('/out/deep/er', { recursive: true });
      await fs.write('/out/deep/er/x', new Uint8Array([1, 2, 3]));
      await fs.rename('/out/deep/er/x', '/out/deep/y');
      await fs.rm('/out/deep', { recursive: true });
      const { size, type } = await fs.stat('/in/a.txt');
      return [await fs.readText('/in/a.txt'), size, type] }`;
    const id = await deployed(source, { fsx_scope: { read: ['/in'], write: ['/out/**'] } });
    expect(await resultOf(id)).toEqual(['content of a', 12, 'file']);
    expect((await account.sql(databaseId, "select fs.read_text('/out/copy.txt')")).rows).toEqual([
      ['content of a!'],
    ]);
  });

  test('and nowhere else: not with "..", not through symbolic links, not by renaming', async () => {
    await account.sql(
      databaseId,
      `select fs.symlink('/out/link', '/secret'), fs.symlink('/out/file', '/secret/s.txt'), fs.symlink('/in/link', '/secret/s.txt')`,
    );
    const source = `export const handler = async (_, { fs }) => {
      const attempts = [
        () => fs.readText('/secret/s.txt'), () => fs.readText('/in/../secret/s.txt'), () => fs.readText('/in/./../secret/s.txt'),
        () => fs.readText('/in/link'), () => fs.readText('in/a.txt'), () => fs.readText('/input.txt'), () => fs.readText(''),
        () => fs.readText('/out/copy.txt'), () => fs.readText('/in/a.txt\\0'), () => fs.readText(null), () => fs.readdir('/'),
        () => fs.write('/secret/s.txt', 'x'), () => fs.write('/out/../secret/s.txt', 'x'), () => fs.write('/out/file', 'x'),
        () => fs.write('/out/link/s.txt', 'x'), () => fs.append('/out/link/s.txt', 'x'), () => fs.write('/in/a.txt', 'x'), () => fs.truncate('/out/file'),
        () => fs.rename('/secret/s.txt', '/out/s.txt'), () => fs.rename('/out/copy.txt', '/secret/t.txt'), () => fs.rename('/out/copy.txt', '/out/link/t.txt'),
        () => fs.rm('/secret', { recursive: true }), () => fs.unlink('/secret/s.txt'), () => fs.mkdir('/elsewhere'), () => fs.mkdir('/out/link/x'),
      ];
      const codes = [];
      for (const attempt of attempts) codes.push(await attempt().then((value) => 'got ' + value, (error) => error.code));
      return codes }`;
    const id = await deployed(source, { fsx_scope: { read: ['/in'], write: ['/out'] } });
    for (const code of (await resultOf(id)) as string[]) expect(code).toMatch(/^(EACCES|EINVAL)$/);
    expect((await account.sql(databaseId, "select fs.read_text('/secret/s.txt')")).rows).toEqual([
      ['secret'],
    ]);
    const none = await deployed(
      "export const handler = (_, { fs }) => fs.readText('/in/a.txt').catch((error) => error.code)",
    );
    expect(await resultOf(none)).toBe('EACCES');
  });
});

test('deleting the database ends its functions', async () => {
  const other = (await account.database()).id;
  const functions = `/customer/databases/${other}/functions`;
  const { body } = await account.post(functions, {
    name: 'f',
    entrypoint: 'a.handler',
    bundle_ref: dataUrl('export const handler = () => 1'),
  });
  await account.post(`${functions}/${body.function.id}/invoke`, {});
  expect((await account.delete(`/customer/databases/${other}`)).status).toBe(200);
  expect((await account.post(`${functions}/${body.function.id}/invoke`, {})).status).toBe(404);
});
