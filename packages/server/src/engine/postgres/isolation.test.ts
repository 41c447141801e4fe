// What a customer's `admin` tries in order to get out of its database: each must be refused, by
// Postgres itself and not by our counting of statements.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, copyFile, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openTestFleet, type TestFleet } from './open-test-fleet.ts';

const system = '/usr/lib/postgresql/15/bin';
const servers: { name: string; postgresBin?: string }[] = [{ name: 'Postgres from npm' }];
// Version 15 has other rules for createrole; where there is one, it must hold there, too.
if (existsSync(system)) servers.push({ name: 'Postgres 15 of the system', postgresBin: system });

/** Insufficient privilege, or no such thing at all. */
const refusals = new Set([
  '42501',
  '0A000',
  '42704',
  '58P01',
  '22023',
  '42883',
  '42710',
  '0LP01',
  '55P02',
]);

const attempts: Record<string, string[]> = {
  'programs and files of the host': [
    `copy (select 1) to program 'true'`,
    `create table c (t text); copy c from program 'id'`,
    `copy (select 1) to '/tmp/coppice-isolation'`,
    `create table c (t text); copy c from '/etc/passwd'`,
    `select pg_read_file('/etc/passwd')`,
    `select pg_read_file('postmaster.pid')`,
    `select pg_read_binary_file('PG_VERSION')`,
    `select pg_ls_dir('/')`,
    `select pg_stat_file('/etc/passwd')`,
    `select lo_import('/etc/passwd')`,
    `select lo_export(lo_create(0), '/tmp/coppice-isolation')`,
    `select pg_catalog.pg_file_write('x', 'y', false)`,
    `create tablespace t location '/tmp'`,
  ],
  'more rights': [
    `alter role admin superuser`,
    `alter role admin replication`,
    `alter role admin bypassrls`,
    `create role other superuser`,
    `create role other replication login`,
    `create role other bypassrls`,
    `set role postgres`,
    `set session authorization postgres`,
    `grant postgres to admin`,
    `grant pg_execute_server_program to admin`,
    `grant pg_read_server_files to admin`,
    `grant pg_write_server_files to admin`,
    `create role other in role pg_execute_server_program`,
    `create role other in role postgres`,
    `alter role postgres password 'x'`,
    `alter role postgres rename to other`,
    `alter role postgres set search_path = public`,
    `alter role all set search_path = public`,
    `drop role postgres`,
    `reassign owned by postgres to admin`,
    `drop owned by postgres`,
  ],
  'catalogs and objects of the service': [
    `update pg_authid set rolsuper = true where rolname = 'admin'`,
    `update pg_proc set prolang = 12`,
    `insert into pg_language values (1, 'x', 10, false, false, 0, 0, 0, null)`,
    `delete from pg_database`,
    `set allow_system_table_mods = on`,
    `create table pg_catalog.mine (a int)`,
    `create function pg_catalog.mine() returns int language sql as 'select 1'`,
    `drop schema coppice cascade`,
    `drop table coppice.steps`,
    `insert into coppice.steps values ('9999-x.sql')`,
    `alter schema coppice rename to other`,
  ],
  'code in the server': [
    `load '/tmp/evil.so'`,
    `load 'auto_explain'`,
    `create function f() returns int language c as '/tmp/evil.so', 'f'`,
    `create function f() returns int language c as 'libc.so.6', 'system'`,
    `create function f(text) returns int language internal as 'pg_read_file_all'`,
    `create extension plpython3u`,
    `create extension plperlu`,
    `create extension plperl`,
    `create extension pltcl`,
    `create extension pltclu`,
    `create language plpython3u`,
    `create extension file_fdw`,
    `create extension dblink`,
    `create extension postgres_fdw`,
    `create extension adminpack`,
    `create extension pg_surgery`,
    `create extension pageinspect`,
    `create extension pg_walinspect`,
    `create event trigger e on ddl_command_start execute function pg_catalog.suppress_redundant_updates_trigger()`,
    `create access method m type index handler pg_catalog.bthandler`,
    `create foreign data wrapper w`,
    `create server s foreign data wrapper dblink_fdw`,
  ],
  'other servers and the log': [
    `create subscription s connection 'host=/run dbname=postgres' publication p`,
    `select pg_create_physical_replication_slot('s')`,
    `select pg_create_logical_replication_slot('s', 'runningdecoding')`,
    `select pg_logical_slot_get_changes('s', null, null)`,
    `select pg_backup_start('x')`,
    `select pg_switch_wal()`,
    `select pg_promote()`,
    `select pg_wal_replay_pause()`,
    `select pg_replication_origin_create('x')`,
  ],
  'settings of the server': [
    `alter system set archive_command = 'true'`,
    `alter system set shared_preload_libraries = 'x'`,
    `set log_min_messages = debug5`,
    `set session_preload_libraries = 'x'`,
    `alter database postgres set session_preload_libraries = 'x'`,
    `set dynamic_library_path = '/tmp'`,
    `set data_directory_mode = '0777'`,
    `set temp_file_limit = -1`,
    `set session_replication_role = replica`,
    `set zero_damaged_pages = on`,
    `set ignore_checksum_failure = on`,
    `select pg_reload_conf()`,
    `select pg_rotate_logfile()`,
    `grant set on parameter temp_file_limit to admin`,
    `select * from pg_hba_file_rules`,
    `select pg_read_file(current_setting('hba_file'))`,
  ],
};

describe.each(servers)('$name: admin is refused', ({ postgresBin }) => {
  let running: TestFleet;
  let id: string;
  let admin: pg.Client;

  beforeAll(async () => {
    running = await openTestFleet({ ...(postgresBin ? { postgresBin } : {}) });
    id = await running.create();
    admin = await running.connect(id);
  });
  afterAll(async () => {
    await admin?.end();
    await running?.close();
  });

  for (const [what, statements] of Object.entries(attempts))
    describe(what, () => {
      test.each(statements)('%s', async (sql) => {
        const error = await admin.query(sql).then(
          () => null,
          (failure: unknown) => failure,
        );
        expect(error, 'it was allowed').toBeInstanceOf(pg.DatabaseError);
        const { code, message } = error as pg.DatabaseError;
        expect(refusals.has(code ?? ''), `${code}: ${message}`).toBe(true);
      });
    });

  test('other databases of the server', async () => {
    for (const sql of [
      `create database other owner postgres`,
      `drop database template1`,
      `alter database template1 is_template false`,
    ])
      await expect(admin.query(sql), sql).rejects.toMatchObject({
        code: expect.stringMatching(/^(42501|0A000|42809|55006)$/),
      });
  });

  test("the service's sessions cannot be ended, nor steered by defaults of the database", async () => {
    const superuser = await running.connect(id, 'postgres');
    const { rows } = await superuser.query<{ pid: number }>('select pg_backend_pid() as pid');
    const { pid } = rows[0]!;
    for (const end of ['pg_terminate_backend', 'pg_cancel_backend'])
      await expect(admin.query(`select ${end}(${pid})`)).rejects.toMatchObject({ code: '42501' });
    await superuser.end();

    await admin.query(`
      create schema evil;
      create function evil.now() returns timestamptz language plpgsql as
        $$ begin execute 'alter role admin superuser'; return pg_catalog.now(); end $$;
      alter database postgres set search_path = evil, pg_catalog;
      alter database postgres set role = 'admin';
      alter database postgres set default_transaction_read_only = on;
      alter database postgres set statement_timeout = 1`);
    try {
      const [found] = await running.query(
        id,
        `select current_user as who, now() as now, current_setting('search_path') as path,
                current_setting('statement_timeout') as timeout,
                current_setting('default_transaction_read_only') as readonly`,
        'postgres',
      );
      expect(found).toMatchObject({
        who: 'postgres',
        path: 'pg_catalog',
        timeout: '0',
        readonly: 'off',
      });
    } finally {
      await admin.query('alter database postgres reset all');
    }
    const { rows: roles } = await admin.query(
      `select rolsuper from pg_roles where rolname = 'admin'`,
    );
    expect(roles).toEqual([{ rolsuper: false }]);
  });

  test('it may do what an owner needs', async () => {
    const extensions = [
      'hstore',
      'pgcrypto',
      'pg_trgm',
      'uuid-ossp',
      'citext',
      'btree_gist',
      'ltree',
      'unaccent',
    ];
    for (const name of extensions) {
      const known = await admin.query('select 1 from pg_available_extensions where name = $1', [
        name,
      ]);
      if (known.rowCount) await admin.query(`create extension "${name}"`);
    }
    await admin.query(
      `create schema app; create table app.t (a int primary key); insert into app.t values (1)`,
    );
    await admin.query(
      `create role worker login password 'x'; grant usage on schema app to worker; grant select on app.t to worker`,
    );
    await admin.query('create database second');
    await admin.query('create database third template template0');
    for (const sql of ['checkpoint', 'analyze app.t', 'vacuum app.t']) await admin.query(sql);
    const worker = await running.connect(id, 'worker');
    expect((await worker.query('select * from app.t')).rows).toEqual([{ a: 1 }]);
    await worker.query('create temp table scratch (a int)');
    await worker.end();
    const other = await running.connect(id, 'admin', 'second');
    await other.query('create table t (a int)');
    await other.end();
  });

  test('readonly reads everything there is and will be, and writes nothing', async () => {
    await admin.query(
      `create schema later; create table later.t as select 1 as a; create view later.v as select * from later.t`,
    );
    const reader = await running.connect(id, 'readonly');
    try {
      expect((await reader.query('select * from later.t, later.v')).rows).toHaveLength(1);
      await expect(reader.query('insert into later.t values (2)')).rejects.toMatchObject({
        code: '25006',
      });
      await reader.query('set default_transaction_read_only = off');
      for (const sql of [
        'insert into later.t values (2)',
        'update later.t set a = 2',
        'delete from later.t',
        'truncate later.t',
        'drop table later.t',
        'create table public.mine (a int)',
        'create schema mine',
        'set role admin',
      ])
        await expect(reader.query(sql), sql).rejects.toMatchObject({ code: '42501' });
    } finally {
      await reader.end();
    }
  });

  test('end users see what policies let them see', async () => {
    await admin.query(`
      create table public.notes (owner text, text text);
      insert into notes values ('anon', 'a'), ('other', 'b');
      alter table notes enable row level security;
      create policy own on notes to anon using (owner = current_user)`);
    expect(await running.query(id, 'select text from public.notes', 'anon')).toEqual([
      { text: 'a' },
    ]);
    expect(await running.query(id, 'select text from public.notes', 'authenticated')).toEqual([]);
    expect(await running.query(id, 'select text from public.notes')).toHaveLength(2);
  });
});

describe('the machine around an instance', () => {
  let running: TestFleet;

  beforeAll(async () => {
    running = await openTestFleet();
  });
  afterAll(() => running?.close());

  test.runIf(process.getuid?.() === 0)('every instance has a user of its own', async () => {
    const ids = await Promise.all([running.create(), running.create()]);
    const owners = await Promise.all(ids.map((id) => running.fleet.owner(id)));
    expect(owners[0]!.uid).not.toBe(owners[1]!.uid);
    for (const [index, id] of ids.entries()) {
      const pid = await running.postmasterPid(id);
      const status = await readFile(`/proc/${pid}/status`, 'utf8');
      expect(status).toMatch(new RegExp(`^Uid:\\s+${owners[index]!.uid}\\s`, 'm'));
      expect(status).toMatch(/^Groups:\s*$/m);
    }
  });

  test.runIf(process.platform === 'linux')(
    'a session that wants all memory fails alone',
    async () => {
      const id = await running.create();
      const greedy = await running.connect(id);
      await greedy.query(`set work_mem = '1TB'; set max_parallel_workers_per_gather = 0`);
      const hash = `select count(*) from (select distinct repeat(md5(n::text), 30) from generate_series(1, 2000000) n) d`;
      await expect(greedy.query(hash)).rejects.toMatchObject({ code: '53200' });
      expect((await greedy.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
      await greedy.end();
    },
  );

  test('it listens nowhere but on its own socket', async () => {
    const id = await running.create();
    const [row] = await running.query(
      id,
      `select current_setting('listen_addresses') as tcp, current_setting('unix_socket_directories') as sockets`,
    );
    expect(row!.tcp).toBe('');
    expect(row!.sockets).toBe(join(running.host.layout.sockets, id));
  });

  test.runIf(process.getuid?.() === 0)('another user does not get in', async () => {
    const id = await running.create();
    const lease = await running.fleet.wake(id);
    const directory = await mkdtemp('/tmp/coppice-isolation-');
    try {
      const script = join(directory, 'try.cjs');
      await writeFile(
        script,
        `const socket = require('node:net').connect(${JSON.stringify(join(lease.socketDirectory, '.s.PGSQL.5432'))});
         socket.on('connect', () => { console.log('connected'); process.exit(); });
         socket.on('error', (error) => { console.log(error.code); process.exit(); });`,
      );
      // The clone, and with it this Node, may lie where others cannot reach it.
      const node = join(directory, 'node');
      await copyFile(process.execPath, node);
      await chmod(directory, 0o755);
      const { stdout } = spawnSync(node, [script], {
        uid: 65534,
        gid: 65534,
        encoding: 'utf8',
        cwd: '/',
      });
      expect(stdout.trim()).toBe('EACCES');
    } finally {
      lease.release();
      await rm(directory, { recursive: true, force: true });
    }
  });

  test('the shipped tree has nothing that reaches out', async () => {
    const extensions = await readdir(
      join(running.host.binaries.bin, '../share/postgresql/extension'),
    );
    for (const name of ['dblink', 'postgres_fdw', 'file_fdw', 'plperl', 'plpython3u', 'pltcl'])
      expect(extensions).not.toContain(`${name}.control`);
    expect(extensions).toContain('hstore.control');
  });
});
