// A dump is replayed through /sql into a new database and compared, object by object and row by row.
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { sizeOf } from '../../scripts/soak-sizes.ts';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

const rowCount = sizeOf('dump-rows');

let service: RunningService;
let account: Account;

beforeAll(async () => {
  service = await startService();
  account = await service.api.register();
});
afterAll(() => service?.stop());

const dump = (id: string, body: unknown = {}) =>
  account.post(`/customer/databases/${id}/dump`, body);

async function replay(sql: string): Promise<string> {
  const { id } = await account.database();
  const { status, text } = await account.post(`/customer/databases/${id}/sql`, {
    file_content: sql,
  });
  expect({ status, text: status === 200 ? '' : text }).toEqual({ status: 200, text: '' });
  return id;
}

const richSchema = `
  create extension hstore; create extension citext schema public; create extension pg_trgm;
  create schema "Odd Schema"; comment on schema "Odd Schema" is 'a comment with ''quotes''';
  create role reporting; create role "Odd Role";
  create type mood as enum ('sad', 'ok', 'it''s "fine"');
  create type address as (street text, number int, tags text[]);
  create domain email as citext check (value ~ '@'); comment on domain email is 'mail';
  create sequence "Odd Schema".counter start 100 increment 5 cache 3;
  create table customers (
    id bigint generated always as identity primary key,
    name varchar(500) not null default 'nobody',
    mail email unique, feeling mood, home address, attributes hstore,
    balance numeric(12,2) default 0 check (balance >= -100),
    doubled numeric generated always as (balance * 2) stored,
    created timestamptz not null default '2020-01-01', data jsonb, raw bytea);
  comment on table customers is E'line one\\nline two'; comment on column customers.name is 'the name';
  create table "Odd Schema"."Order ""items""" (
    n serial primary key, customer bigint not null references customers on delete cascade deferrable initially deferred,
    during daterange, exclude using gist (during with &&));
  create table self_reference (id int primary key, parent int references self_reference);
  create table events (at date not null, kind text, payload text) partition by range (at);
  create table events_2020 partition of events for values from ('2020-01-01') to ('2021-01-01');
  create table events_rest partition of events default;
  create index events_kind on events (kind) where kind <> 'x';
  create index on customers using gin (name gin_trgm_ops);
  create unique index on customers (lower(name), id desc nulls last) include (balance);
  create statistics customer_stats (dependencies) on name, balance from customers;
  create view rich as select id, name from customers where balance > 10 with check option;
  create view recursive_view as with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select * from r;
  create materialized view totals as select count(*) as n, sum(balance) from customers; create unique index on totals (n);
  create function add(a int, b int default 2) returns int language sql immutable strict parallel safe as $$ select a + b $$;
  create function body() returns text language plpgsql as $body$ begin return '$$ ''-- Name: fake; Type: TABLE; Schema: x; Owner: -'' ;' || E'\\n\\\\restrict x'; end $body$;
  create function atomic_body(x int) returns int language sql begin atomic select x + 1; end;
  create procedure proc() language plpgsql as $$ begin null; end $$;
  create aggregate mul(int) (sfunc = int4mul, stype = int, initcond = '1');
  create operator === (leftarg = int, rightarg = int, function = int4eq);
  create function touch() returns trigger language plpgsql as $$ begin new.data = coalesce(new.data, '{}') || '{"touched": true}'; return new; end $$;
  create trigger touch before update on customers for each row when (new.balance > 5) execute function touch();
  create rule nothing as on delete to self_reference do instead nothing;
  alter table customers enable row level security;
  create policy own on customers for select to reporting, authenticated using (id > 0);
  create policy "Odd policy" on customers as restrictive to "Odd Role" using (true) with check (balance > 0);
  grant select on customers to reporting with grant option; grant update (name) on customers to "Odd Role";
  grant usage on schema "Odd Schema" to reporting; grant execute on function add to reporting; revoke execute on function add from public;
  revoke all on self_reference from anon, authenticated;
  alter default privileges in schema "Odd Schema" grant select on tables to reporting;
  create collation german (provider = icu, locale = 'de-u-co-phonebk');
  create text search configuration mine (copy = english);
  create cast (address as text) with inout;
  create publication pub for table customers;
  select lo_from_bytea(123456, '\\x00ff10'); comment on large object 123456 is 'large';
  select setval('"Odd Schema".counter', 1234);
`;

const richData = `
  insert into customers (name, mail, feeling, home, attributes, balance, data, raw)
    select 'n' || n, 'm' || n || '@x', (array['sad', 'ok', 'it''s "fine"'])[1 + n % 3]::mood,
           row('st, "' || n || '"', n, array['a', null, 'b"\\'])::address, hstore('k' || n, nullif(n::text, '7')),
           n / 100.0, jsonb_build_object('n', n, 'text', repeat('ü', n % 5)), decode(md5(n::text), 'hex')
      from generate_series(1, ${rowCount}) n;
  insert into customers (name) values (E'\\\\restrict inside\\n\\\\restrict line\\n-- Name: x; Type: TABLE; Schema: y; Owner: z\\n$$ ''quoted'' \\t\\r\\n end'), (''), (E'\\x01\\x7f'), ('$body$'), ('--'), ('/*'), (E'\\\\');
  insert into "Odd Schema"."Order ""items""" (customer, during) select n, daterange('2020-01-01'::date + n, '2020-01-02'::date + n) from generate_series(1, 50) n;
  insert into self_reference values (2, null), (1, 2);
  insert into events select '2019-12-25'::date + n, 'k' || n % 3, repeat(chr(65 + n % 26), n) from generate_series(1, 400) n;
  refresh materialized view totals;
`;

/** Every definition and a digest of every table's rows, as text that can be compared. */
const fingerprint = `
  with rels as (
    select c.oid, c.oid::regclass::text as name, c.relkind, c.relrowsecurity, c.relreplident from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where n.nspname in ('public', 'Odd Schema') and c.relkind in ('r', 'p', 'v', 'm', 'S')
       and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'e')
  ), lines as (
    select concat('relation ', name, relkind, relrowsecurity, relreplident, coalesce(obj_description(oid, 'pg_class'), '')) as line from rels
    union all select concat('acl ', name, ' ', a.grantee::regrole::text, ' ', a.privilege_type, a.is_grantable) from rels join pg_class c using (oid), aclexplode(coalesce(c.relacl, acldefault(case when c.relkind = 'S' then 's' else 'r' end::"char", c.relowner))) a where a.grantee <> 0
    union all select concat('column ', r.name, '.', attname, ' ', format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated, coalesce(pg_get_expr(adbin, adrelid), ''), coalesce(col_description(attrelid, attnum), ''), coalesce(attacl::text, ''))
      from rels r join pg_attribute on attrelid = r.oid left join pg_attrdef on adrelid = attrelid and adnum = attnum where attnum > 0 and not attisdropped
    union all select concat('constraint ', conrelid::regclass, conname, pg_get_constraintdef(oid)) from pg_constraint where conrelid in (select oid from rels)
    union all select concat('index ', pg_get_indexdef(indexrelid)) from pg_index where indrelid in (select oid from rels)
    union all select concat('view ', name, pg_get_viewdef(oid)) from rels where relkind in ('v', 'm')
    union all select concat('function ', p.oid::regprocedure, coalesce(case when prokind <> 'a' then pg_get_functiondef(p.oid) end, ''), coalesce(proacl::text, '')) from pg_proc p
      where pronamespace in ('public'::regnamespace, '"Odd Schema"'::regnamespace) and not exists (select from pg_depend d where d.objid = p.oid and d.deptype = 'e')
    union all select concat('trigger ', pg_get_triggerdef(oid)) from pg_trigger where not tgisinternal and tgrelid in (select oid from rels)
    union all select concat('policy ', tablename, policyname, permissive, roles::text, cmd, coalesce(qual, ''), coalesce(with_check, '')) from pg_policies
    union all select concat('rule ', definition) from pg_rules where schemaname = 'public'
    union all select concat('enum ', enumtypid::regtype, enumlabel, enumsortorder) from pg_enum
    union all select concat('type ', t.oid::regtype, typtype, coalesce(obj_description(t.oid, 'pg_type'), ''), coalesce((select string_agg(pg_get_constraintdef(c.oid), ',') from pg_constraint c where contypid = t.oid), ''))
      from pg_type t where typnamespace = 'public'::regnamespace and not exists (select from pg_depend d where d.objid = t.oid and d.deptype in ('e', 'i'))
    union all select concat('extension ', extname, extversion) from pg_extension
    union all select concat('sequence ', sequencename, start_value, increment_by, cache_size, coalesce(last_value, -1)) from pg_sequences
    union all select concat('partition ', oid::regclass, coalesce(pg_get_expr(relpartbound, oid), '')) from pg_class where relispartition
    union all select concat('statistics ', pg_get_statisticsobjdef(oid)) from pg_statistic_ext
    union all select concat('publication ', pubname, tablename) from pg_publication_tables
    union all select concat('default acl ', defaclobjtype, defaclnamespace::regnamespace, defaclacl::text) from pg_default_acl where defaclnamespace::regnamespace::text not in ('coppice', 'fs', 'auth')
    union all select concat('schema ', nspname, nspacl::text) from pg_namespace where nspname in ('public', 'Odd Schema')
    union all select concat('large object ', oid, encode(lo_get(oid), 'hex'), coalesce(obj_description(oid, 'pg_largeobject'), '')) from pg_largeobject_metadata
    union all select concat('collation ', collname, collprovider, coalesce(colllocale, '')) from pg_collation where collnamespace = 'public'::regnamespace
    union all select concat('config ', cfgname) from pg_ts_config where cfgnamespace = 'public'::regnamespace
    union all select concat('cast ', castsource::regtype, casttarget::regtype) from pg_cast where oid >= 16384 and castmethod = 'i' and castsource = 'address'::regtype
    union all select concat('operator ', oid::regoperator) from pg_operator where oprnamespace = 'public'::regnamespace and oprname = '==='
    union all select concat('rows ', name, (xpath('//d/text()', query_to_xml(format('select md5(string_agg(md5(x::text), '''' order by x::text collate "C")) as d from %s x', oid::regclass), false, true, '')))[1]::text)
      from rels where relkind in ('r', 'p') or relkind = 'm' and (select relispopulated from pg_class c where c.oid = rels.oid)
  ) select line from lines order by line collate "C"`;

async function fingerprintOf(id: string): Promise<string[]> {
  const { rows } = await account.sql(id, fingerprint);
  return rows.map(([line]: [string]) => line);
}

describe('a rich database', () => {
  let id: string;
  let original: string[];
  beforeAll(async () => {
    ({ id } = await account.database());
    await account.sql(id, richSchema);
    await account.sql(id, richData);
    original = await fingerprintOf(id);
  });

  test('comes back equal from its dump, and so does the dump of the copy', async () => {
    const first = await dump(id);
    expect({ status: first.status, message: first.body.message }).toEqual({
      status: 200,
      message: undefined,
    });
    expect(Object.keys(first.body).sort()).toEqual(['object_count', 'sql']);
    expect(first.body.sql).not.toMatch(/^\\(un)?restrict [0-9a-f]{32}$/m);
    expect(first.body.sql).not.toMatch(/coppice\\.|CREATE SCHEMA (coppice|fs|auth)/);
    const copy = await replay(first.body.sql);
    expect(original.length).toBeGreaterThan(120);
    expect(await fingerprintOf(copy)).toEqual(original);
    const second = await dump(copy);
    expect(second.body.object_count).toBe(first.body.object_count);
    expect(second.body.sql).toBe(first.body.sql);
  });

  test('ddl_only has every object and no rows', async () => {
    const { body } = await dump(id, { ddl_only: true });
    const full = await dump(id);
    expect(body.sql).not.toMatch(/INSERT INTO/);
    expect(body.object_count).toBeGreaterThan(40);
    expect(Math.abs(full.body.object_count - body.object_count)).toBeLessThanOrEqual(3);
    const copy = await replay(body.sql);
    const definitions = (lines: string[]) =>
      lines.filter((line) => !/^(rows|sequence|large object) /.test(line));
    expect(definitions(await fingerprintOf(copy))).toEqual(definitions(original));
  });
});

test('an empty database has no objects; each object counts once', async () => {
  const { id } = await account.database();
  const empty = await dump(id);
  expect(empty.body.object_count).toBe(0);
  await replay(empty.body.sql);
  await account.sql(id, 'create schema s; create table s.t (a int)');
  expect((await dump(id)).body.object_count).toBe(2);
});

test('bad bodies 400, other customers 404, too much 422', async () => {
  const { id } = await account.database();
  expect((await dump(id, { ddl_only: 'yes' })).status).toBe(400);
  expect((await dump(id, undefined)).status).toBe(200);
  const stranger = await service.api.register();
  expect((await stranger.post(`/customer/databases/${id}/dump`, {})).status).toBe(404);
  await account.sql(
    id,
    "create table big as select repeat('x', 1000) from generate_series(1, 80000)",
  );
  const { status, body } = await dump(id);
  expect(status).toBe(422);
  expect(body.message).toMatch(/pg_dump/);
  expect((await dump(id, { ddl_only: true })).status).toBe(200);
});

test('a dump ends when its client goes away', async () => {
  const { id } = await account.database();
  await account.sql(id, 'create table held (a int)');
  const controller = new AbortController();
  // The dump waits for this lock.
  const holder = account.sql(
    id,
    'begin; lock table held in access exclusive mode; select pg_sleep(3)',
  );
  const activity = async () =>
    (
      await account.sql(
        id,
        "select count(*) from pg_stat_activity where query like 'LOCK TABLE public.held%' and state = 'active'",
      )
    ).rows[0][0];
  const call = service.api.call('POST', `/customer/databases/${id}/dump`, {
    token: account.token,
    body: {},
    signal: controller.signal,
  });
  while ((await activity()) === 0);
  controller.abort();
  await expect(call).rejects.toThrow();
  await holder;
  while ((await activity()) !== 0);
});
