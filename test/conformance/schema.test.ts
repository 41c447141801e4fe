import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;

beforeAll(async () => {
  service = await startService();
  account = await service.api.register();
});
afterAll(() => service?.stop());

const describeSchema = async (id: string) =>
  (await account.get(`/customer/databases/${id}/schema`)).body;

test('a fresh database has none of our own objects', async () => {
  const { id } = await account.database();
  expect(await describeSchema(id)).toEqual({ tables: [], views: [] });
});

test('tables with columns, types and nullability; views of both kinds', async () => {
  const { id } = await account.database();
  await account.sql(
    id,
    `create schema "Odd ""schema"; create type mood as enum ('a'); create type "Odd ""schema".kind as enum ('b');
     create domain required as text not null;
     create table people (id bigint generated always as identity primary key, name varchar(20) not null, gone int,
       at timestamptz(3), tags text[], price numeric(10,2), feeling mood, other "Odd ""schema".kind, r required, "Wei""rd" json);
     alter table people drop column gone;
     create table "Odd ""schema".empty ();
     create table parted (a int) partition by list (a); create table parted_1 partition of parted for values in (1);
     create view shown as select id from people; create materialized view kept as select 1 as one;
     create temp table temporary (a int); create sequence s; create index on people (name)`,
  );
  expect(await describeSchema(id)).toEqual({
    tables: [
      { schema: 'Odd "schema', name: 'empty', columns: [] },
      {
        schema: 'public',
        name: 'parted',
        columns: [{ name: 'a', type: 'integer', nullable: true }],
      },
      {
        schema: 'public',
        name: 'parted_1',
        columns: [{ name: 'a', type: 'integer', nullable: true }],
      },
      {
        schema: 'public',
        name: 'people',
        columns: [
          { name: 'id', type: 'bigint', nullable: false },
          { name: 'name', type: 'character varying(20)', nullable: false },
          { name: 'at', type: 'timestamp(3) with time zone', nullable: true },
          { name: 'tags', type: 'text[]', nullable: true },
          { name: 'price', type: 'numeric(10,2)', nullable: true },
          { name: 'feeling', type: 'mood', nullable: true },
          { name: 'other', type: '"Odd ""schema".kind', nullable: true },
          { name: 'r', type: 'required', nullable: false },
          { name: 'Wei"rd', type: 'json', nullable: true },
        ],
      },
    ],
    views: [
      { name: 'kept', schema: 'public' },
      { name: 'shown', schema: 'public' },
    ],
  });
});

test('1,000 tables come in well under a second', async () => {
  const { id } = await account.database();
  await account.sql(
    id,
    `do $$ begin for n in 1..1000 loop
       execute format('create table t%s (id int primary key, a text not null, b numeric(10,2), c timestamptz, d jsonb)', n);
     end loop; end $$`,
  );
  await describeSchema(id);
  const startedMs = performance.now();
  const { tables } = await describeSchema(id);
  const tookMs = performance.now() - startedMs;
  expect(tables.length).toBe(1000);
  expect(tables.every((table: { columns: unknown[] }) => table.columns.length === 5)).toBe(true);
  // About 40 ms on an idle machine.
  expect(tookMs).toBeLessThan(2_000);
});

test("another customer's database: 404", async () => {
  const { id } = await account.database();
  const stranger = await service.api.register();
  expect((await stranger.get(`/customer/databases/${id}/schema`)).status).toBe(404);
});
