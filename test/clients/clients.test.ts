// Real clients against the Postgres port, encrypted and not.
import { existsSync, globSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { fileURLToPath } from 'node:url';
import { drizzle } from 'drizzle-orm/node-postgres';
import { migrate } from 'drizzle-orm/node-postgres/migrator';
import pg from 'pg';
import postgres from 'postgres';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { CreatedDatabase } from '../support/api.ts';
import { run } from '../support/run.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let database: CreatedDatabase;
let scratch: string;

beforeAll(async () => {
  service = await startService();
  database = await (await service.api.register()).database();
  scratch = await mkdtemp(join(tmpdir(), 'coppice-clients-'));
});
afterAll(async () => {
  await service?.stop();
  if (scratch) await rm(scratch, { recursive: true, force: true });
});

const programs = resolve(fileURLToPath(import.meta.url), '../programs');
const user = () => `${database.id}.admin`;
const uri = (sslmode: string) =>
  `${database.connection_string.replace('@', `:${database.admin_password}@`)}?sslmode=${sslmode}`;

describe.each([
  { way: 'plain', sslmode: 'disable', isEncrypted: false },
  { way: 'encrypted', sslmode: 'require', isEncrypted: true },
])('$way', ({ sslmode, isEncrypted }) => {
  const psql = (...args: string[]) =>
    run('psql', ['-X', '-v', 'ON_ERROR_STOP=1', uri(sslmode), ...args], {
      env: { PGOPTIONS: '-c client_min_messages=warning' },
    });
  const nodePostgres = async () => {
    const client = new pg.Client({
      host: service.gateway.host,
      port: service.gateway.port,
      user: user(),
      password: database.admin_password,
      database: 'postgres',
      ssl: isEncrypted ? { rejectUnauthorized: false } : false,
    });
    client.on('error', () => {});
    await client.connect();
    return client;
  };

  describe('psql', () => {
    test('several statements, \\d, \\conninfo', async () => {
      const result = await psql(
        '-At',
        '-c',
        'drop table if exists p; create table p (id int primary key, body text); insert into p values (1, $$é$$)',
        '-c',
        'select * from p; select count(*) from p',
        '-c',
        '\\d p',
        '-c',
        '\\conninfo',
      );
      expect(result).toMatchObject({ code: 0, stderr: '' });
      expect(result.stdout).toContain('1|é\n1\n');
      expect(result.stdout).toContain('id|integer||not null|');
      expect(result.stdout.includes('SSL connection')).toBe(isEncrypted);
    });

    test('\\copy out and in, large', async () => {
      const file = join(scratch, `copied-${sslmode}`);
      const result = await psql(
        '-At',
        '-c',
        'drop table if exists big; create table big as select i, repeat(md5(i::text), 10) as t from generate_series(1, 60000) i',
        '-c',
        `\\copy big to '${file}'`,
        '-c',
        'create table big2 (like big)',
        '-c',
        `\\copy big2 from '${file}'`,
        '-c',
        'select count(*), md5(string_agg(t, $$$$ order by i)) = (select md5(string_agg(t, $$$$ order by i)) from big) from big2',
        '-c',
        'drop table big, big2',
      );
      expect(result).toMatchObject({ code: 0, stderr: '' });
      expect(result.stdout).toContain('60000|t');
      expect((await readFile(file)).length).toBeGreaterThan(19_000_000);
    });

    test('Ctrl-C cancels', async () => {
      let interrupted = false;
      const startedAt = performance.now();
      const result = await run(
        'psql',
        ['-X', uri(sslmode), '-c', 'select 1 as begun', '-c', 'select pg_sleep(60)'],
        {
          onOutput(output, interrupt) {
            if (interrupted || !output.includes('begun')) return;
            interrupted = true;
            // The first answer is out before the second query is in.
            setTimeout(interrupt, 300);
          },
        },
      );
      expect(result.stderr).toContain('canceling statement due to user request');
      expect(performance.now() - startedAt).toBeLessThan(30_000);
    });

    test('a wrong statement does not end the session', async () => {
      const result = await run('psql', ['-X', '-At', uri(sslmode)], {
        input: 'select nonsense;\nselect 40 + 2;\n',
      });
      expect(result.stderr).toContain('column "nonsense" does not exist');
      expect(result.stdout).toBe('42\n');
    });
  });

  describe('node-postgres', () => {
    test('prepared statements, types, errors, transactions', async () => {
      const client = await nodePostgres();
      for (let i = 0; i < 3; i++) {
        const { rows } = await client.query({
          name: 'add',
          text: 'select $1::int + 1 as n',
          values: [i],
        });
        expect(rows).toEqual([{ n: i + 1 }]);
      }
      await expect(client.query('select 1/0')).rejects.toMatchObject({ code: '22012' });
      await client.query('begin');
      await client.query('create table undone (i int)');
      await client.query('rollback');
      await expect(client.query('table undone')).rejects.toMatchObject({ code: '42P01' });
      const { rows } = await client.query('select pg_backend_pid() as pid');
      expect(rows[0].pid).toBe((client as unknown as { processID: number }).processID);
      await client.end();
    });

    test('large values and large results', async () => {
      const client = await nodePostgres();
      const sent = Buffer.from(Array.from({ length: 300_000 }, (_, i) => i % 256));
      const { rows } = await client.query('select $1::bytea as raw', [sent]);
      expect(sent.equals(rows[0].raw)).toBe(true);
      const large = await client.query(
        'select i, repeat($$x$$, 500) t from generate_series(1, 40000) i',
      );
      expect(large.rows).toHaveLength(40_000);
      expect(large.rows.at(-1)).toEqual({ i: 40_000, t: 'x'.repeat(500) });
      await client.end();
    });

    test('LISTEN and NOTIFY', async () => {
      const [listener, sender] = await Promise.all([nodePostgres(), nodePostgres()]);
      const heard = new Promise((done) => listener.once('notification', done));
      await listener.query('listen news');
      await sender.query(`notify news, 'it works'`);
      expect(await heard).toMatchObject({ channel: 'news', payload: 'it works' });
      await Promise.all([listener.end(), sender.end()]);
    });

    test('a slow reader stops the server, and loses nothing', async () => {
      const client = await nodePostgres();
      const connection = (client as unknown as { connection: { stream: NodeJS.ReadableStream } })
        .connection;
      const result = client.query('select repeat($$y$$, 1000) as t from generate_series(1, 30000)');
      connection.stream.pause();
      await new Promise((done) => setTimeout(done, 500));
      connection.stream.resume();
      expect((await result).rows).toHaveLength(30_000);
      await client.end();
    });
  });

  test('postgres.js: pipelining, COPY both ways, cursors, cancel', async () => {
    const sql = postgres(uri(sslmode), {
      max: 3,
      ssl: isEncrypted ? { rejectUnauthorized: false } : false,
      onnotice: () => {},
    });
    const answers = await Promise.all(
      Array.from({ length: 100 }, (_, i) => sql`select ${i}::int as n`),
    );
    expect(answers.map(([row]) => row!.n)).toEqual(Array.from({ length: 100 }, (_, i) => i));

    await sql`drop table if exists copied`;
    await sql`create table copied (i int, t text)`;
    const lines = Array.from({ length: 20_000 }, (_, i) => `${i}\tline ${i}\n`);
    await pipeline(Readable.from(lines), await sql`copy copied from stdin`.writable());
    const out: Buffer[] = [];
    for await (const chunk of await sql`copy (select * from copied order by i) to stdout`.readable())
      out.push(chunk);
    expect(Buffer.concat(out).toString()).toBe(lines.join(''));

    let seen = 0;
    for await (const rows of sql`select i from copied`.cursor(1_000)) seen += rows.length;
    expect(seen).toBe(20_000);

    const slow = sql`select pg_sleep(60)`;
    setTimeout(() => slow.cancel(), 200);
    await expect(slow).rejects.toMatchObject({ code: '57014' });
    expect([...(await sql`select 1 as n`)]).toEqual([{ n: 1 }]);
    await sql.end();
  });

  test('Drizzle migrations', async () => {
    const folder = join(scratch, `drizzle-${sslmode}`);
    await mkdir(join(folder, 'meta'), { recursive: true });
    const table = `notes_${sslmode}`;
    const steps = [
      `create table ${table} (id serial primary key, body text not null);`,
      `alter table ${table} add column at timestamptz not null default now();--> statement-breakpoint\ncreate index on ${table} (at);`,
    ];
    await Promise.all(steps.map((text, i) => writeFile(join(folder, `000${i}_step.sql`), text)));
    await writeFile(
      join(folder, 'meta/_journal.json'),
      JSON.stringify({
        version: '7',
        dialect: 'postgresql',
        entries: steps.map((_, idx) => ({
          idx,
          version: '7',
          when: 1_700_000_000_000 + idx,
          tag: `000${idx}_step`,
          breakpoints: true,
        })),
      }),
    );
    const client = await nodePostgres();
    const db = drizzle(client);
    await client.query('drop schema if exists drizzle cascade');
    await migrate(db, { migrationsFolder: folder });
    await migrate(db, { migrationsFolder: folder });
    await client.query(`insert into ${table} (body) values ($1)`, ['hello']);
    const { rows } = await client.query(`select body, at is not null as dated from ${table}`);
    expect(rows).toEqual([{ body: 'hello', dated: true }]);
    await client.end();
  });

  test('psycopg2', async () => {
    // Debian's own Python, whatever else is first in the path.
    const result = await run('/usr/bin/python3', [join(programs, 'check.py'), uri(sslmode)]);
    expect(result.stderr).toBe('');
    expect(result.stdout).toBe(`ok ssl=${isEncrypted ? 'True' : 'False'}\n`);
  });

  test.skipIf(!existsSync('/usr/bin/javac'))('JDBC', async () => {
    const { host, port } = service.gateway;
    const result = await run('java', [
      '-cp',
      '/usr/share/java/postgresql.jar',
      join(programs, 'Check.java'),
      `jdbc:postgresql://${host}:${port}/postgres?sslmode=${sslmode}`,
      user(),
      database.admin_password,
    ]);
    expect(result).toMatchObject({ code: 0, stdout: 'ok\n' });
  });

  test('pgbench with 32 clients, every protocol', async () => {
    const pgbench = globSync('/usr/lib/postgresql/*/bin/pgbench').at(-1)!;
    const init = await run(pgbench, ['-i', '-q', '-s', '1', uri(sslmode)]);
    expect(init.code, init.stderr).toBe(0);
    for (const mode of ['simple', 'extended', 'prepared']) {
      const result = await run(pgbench, [
        ...['-n', '-c', '32', '-j', '2', '-t', '20', '-M', mode, '-b', 'select-only@9'],
        ...['-b', 'tpcb-like@1', uri(sslmode)],
      ]);
      expect(result.code, result.stderr).toBe(0);
      expect(result.stdout).toContain('number of transactions actually processed: 640/640');
      expect(result.stdout).toContain('number of failed transactions: 0');
    }
  });
});

const dump = globSync('/usr/lib/postgresql/*/bin/pg_dump').find(
  (path) => Number(/postgresql\/(\d+)/.exec(path)?.[1]) >= 18,
);
test.skipIf(!dump)('pg_dump of a matching version', async () => {
  const result = await run(dump!, ['--schema-only', uri('require')]);
  expect(result).toMatchObject({ code: 0, stderr: '' });
  expect(result.stdout).toContain('PostgreSQL database dump complete');
});
