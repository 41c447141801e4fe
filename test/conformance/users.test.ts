import pg from 'pg';
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

const path = () => `/customer/databases/${id}/users`;
const create = (username: unknown, password?: unknown) =>
  account.post(path(), { username, ...(password === undefined ? {} : { password }) });
const remove = (username: string) => account.delete(`${path()}/${encodeURIComponent(username)}`);
const names = async () =>
  (await account.get(path())).body.map((user: { name: string }) => user.name);

async function connect(connectionString: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString });
  client.on('error', () => {});
  await client.connect();
  return client;
}

test('admin is there from the start, internal roles are not shown', async () => {
  expect((await account.get(path())).body).toEqual([
    {
      name: 'admin',
      is_superuser: false,
      can_login: true,
      can_create_db: true,
      can_create_role: true,
    },
  ]);
});

test('create with a generated password, usable at once over the gateway', async () => {
  const { status, body } = await create('app');
  expect(status).toBe(201);
  expect(body).toEqual({
    message: expect.any(String),
    username: 'app',
    password: expect.stringMatching(/^.{20,}$/),
    connection_string: `postgresql://${id}.app@${service.gateway.host}:${service.gateway.port}/postgres`,
    connection_string_with_password: expect.stringContaining(`${id}.app:${body.password}@`),
  });
  const client = await connect(body.connection_string_with_password);
  expect((await client.query('select current_user')).rows).toEqual([{ current_user: 'app' }]);
  await client.end();
  expect((await account.get(path())).body).toContainEqual({
    name: 'app',
    is_superuser: false,
    can_login: true,
    can_create_db: false,
    can_create_role: false,
  });
  await account.sql(id, 'alter role app createdb; set role app; select 1');
  expect((await account.get(path())).body[1]).toMatchObject({ name: 'app', can_create_db: true });
});

test('odd names and passwords', async () => {
  for (const name of [
    'Mixed Case',
    'quo"te',
    "apo'strophe",
    'dots.and:colons',
    'ümläut@x',
    'a/b?c#d',
    '😀',
    'x'.repeat(63),
    'select',
    '1',
    '-',
  ]) {
    const { status, body } = await create(name, `p@ss:/w"'\\ 😀${name}`);
    expect({ name, status }).toEqual({ name, status: 201 });
    const client = await connect(body.connection_string_with_password);
    expect((await client.query('select current_user::text as name')).rows).toEqual([{ name }]);
    await client.end();
    expect({ name, status: (await remove(name)).status }).toEqual({ name, status: 200 });
  }
});

test('refused: reserved and taken names 409, malformed ones 400', async () => {
  for (const name of [
    'admin',
    'postgres',
    'readonly',
    'anon',
    'authenticated',
    'pg_monitor',
    'pg_anything',
    'public',
    'none',
    'coppice',
    'app',
  ])
    expect({ name, status: (await create(name)).status }).toEqual({ name, status: 409 });
  for (const name of ['', 'x'.repeat(64), 'ü'.repeat(32), 5, null, undefined, 'nul\u0000'])
    expect({ name, status: (await create(name)).status }).toEqual({ name, status: 400 });
  expect((await create('fine', 5)).status).toBe(400);
  expect((await create('fine', '')).status).toBe(400);
  for (const name of ['admin', 'postgres', 'readonly', 'anon', 'authenticated', 'pg_monitor'])
    expect({ name, status: (await remove(name)).status }).toEqual({ name, status: 409 });
  expect((await remove('nobody')).status).toBe(404);
});

test('one name many times at once: one is created, and deleted once', async () => {
  const created = await Promise.all(Array.from({ length: 8 }, () => create('same')));
  expect(created.map((each) => each.status).sort()).toEqual([201, ...Array(7).fill(409)]);
  const removed = await Promise.all(Array.from({ length: 8 }, () => remove('same')));
  expect(removed.map((each) => each.status).sort()).toEqual([200, ...Array(7).fill(404)]);
});

test('deleting hands everything over to admin and ends its sessions', async () => {
  const { body } = await create('owner');
  await account.sql(
    id,
    `grant create on schema public to owner; grant create on database postgres to owner; alter role owner createdb createrole;
     create table admins (a int); grant select on admins to owner with grant option; alter table admins enable row level security;
     create policy p on admins to owner using (true)`,
  );
  const client = await connect(body.connection_string_with_password);
  await client.query(`
    create schema authorization owner; create table owner.inner (a int); create table public.outer (a int);
    insert into public.outer values (1); create sequence public.seq; create type public.kind as enum ('a');
    create function public.f() returns int language sql as 'select 1';
    alter default privileges grant select on tables to public;
    grant select on admins to public;
    create role owned_role; grant owned_role to anon`);
  await client.query('create database other');
  const ended = new Promise((resolve) => client.once('end', resolve));
  expect(await remove('owner')).toMatchObject({
    status: 200,
    body: { message: expect.any(String) },
  });
  await ended;
  expect(await names()).not.toContain('owner');
  const { rows } = await account.sql(
    id,
    `select relname, relowner::regrole::text from pg_class where relname in ('inner', 'outer', 'seq') order by 1`,
  );
  expect(rows).toEqual([
    ['inner', 'admin'],
    ['outer', 'admin'],
    ['seq', 'admin'],
  ]);
  expect((await account.sql(id, 'select a from public.outer')).rows).toEqual([[1]]);
  await expect(connect(body.connection_string_with_password)).rejects.toThrow();
});

test('roles made with SQL are listed and can be deleted; admin manages those made here', async () => {
  await account.sql(id, 'create role by_sql');
  expect(await names()).toContain('by_sql');
  expect((await remove('by_sql')).status).toBe(200);
  await create('managed');
  await account.sql(id, "alter role managed password 'other'; set role managed; select 1");
  await account.sql(id, 'drop owned by managed; drop role managed');
  expect((await remove('managed')).status).toBe(404);
});

test("another customer's database: 404", async () => {
  const stranger = await service.api.register();
  expect((await stranger.get(path())).status).toBe(404);
  expect((await stranger.post(path(), { username: 'x' })).status).toBe(404);
});
