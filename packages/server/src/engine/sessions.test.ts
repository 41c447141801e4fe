import { once } from 'node:events';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { openTestFleet, type TestFleet } from './postgres/open-test-fleet.ts';
import { createSessions, type Sessions } from './sessions.ts';

let running: TestFleet;
let sessions: Sessions;
let id: string;

beforeAll(async () => {
  running = await openTestFleet();
});
afterAll(() => running?.close());
beforeEach(async () => {
  id = await running.create();
  sessions = createSessions(running.fleet, { limit: 3 });
});
afterEach(() => sessions.close());

const as = (role: string) => ({ role });
const pidOf = (role = 'admin') =>
  sessions.use(id, as(role), async (client) => {
    const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
    return rows[0]!.pid;
  });

describe('what one use leaves, the next does not find', () => {
  test('settings, temporary tables, prepared statements, listens, locks', async () => {
    const first = await pidOf();
    await sessions.use(id, as('admin'), async (client) => {
      await client.query(`set search_path = nowhere; create temp table scratch (a int)`);
      await client.query('prepare p as select 1; listen c; select pg_advisory_lock(1)');
      await client.query('set role readonly');
    });
    await sessions.use(id, as('admin'), async (client) => {
      const { rows } = await client.query(
        `select pg_backend_pid() as pid, current_user as who, current_setting('search_path') as path,
           to_regclass('pg_temp.scratch') as scratch, (select count(*)::int from pg_prepared_statements) as prepared,
           (select count(*)::int from pg_locks where locktype = 'advisory') as locks,
           (select count(*)::int from pg_listening_channels()) as channels`,
      );
      expect(rows).toEqual([
        {
          pid: first,
          who: 'admin',
          path: '"$user", public',
          scratch: null,
          prepared: 0,
          locks: 0,
          channels: 0,
        },
      ]);
    });
  });

  test('an open transaction is rolled back, also after a failure', async () => {
    await sessions.use(id, as('admin'), (client) => client.query('create table t (a int)'));
    await sessions.use(id, as('admin'), (client) =>
      client.query('begin; insert into t values (1)'),
    );
    await expect(
      sessions.use(id, as('admin'), async (client) => {
        await client.query('begin; insert into t values (2)');
        throw new Error('changed my mind');
      }),
    ).rejects.toThrow('changed my mind');
    await expect(
      sessions.use(id, as('admin'), (client) => client.query('begin; select 1/0')),
    ).rejects.toMatchObject({ code: '22012' });
    const { rows } = await sessions.use(id, as('admin'), (client) =>
      client.query('select * from t'),
    );
    expect(rows).toEqual([]);
  });

  test('new defaults of the role or the database hold for the next use', async () => {
    await pidOf();
    const path = () =>
      sessions.use(
        id,
        as('admin'),
        async (client) => (await client.query('show search_path')).rows[0].search_path,
      );
    await running.query(id, 'alter role admin set search_path = app');
    expect(await path()).toBe('app');
    await running.query(
      id,
      'alter role admin reset search_path; alter database postgres set search_path = other',
    );
    expect(await path()).toBe('other');
    await running.query(id, 'alter database postgres reset search_path');
    expect(await path()).toBe('"$user", public');
  });

  test('a role that was dropped is gone', async () => {
    await running.query(id, 'create role worker login');
    await pidOf('worker');
    await running.query(id, 'drop role worker');
    await expect(pidOf('worker')).rejects.toMatchObject({ code: '28000' });
  });
});

describe('bounds', () => {
  test('at most so many at a time; the others wait their turn', async () => {
    let inside = 0;
    let most = 0;
    await Promise.all(
      Array.from({ length: 12 }, () =>
        sessions.use(id, as('admin'), async (client) => {
          most = Math.max(most, ++inside);
          await client.query('select pg_sleep(0.01)');
          inside--;
        }),
      ),
    );
    expect(most).toBe(3);
  });

  test('idle sessions of one role make room for another', async () => {
    await Promise.all([pidOf(), pidOf(), pidOf()]);
    await Promise.all([pidOf('readonly'), pidOf('readonly'), pidOf('readonly')]);
    const [row] = await running.query(
      id,
      `select count(*)::int as n from pg_stat_activity where application_name = 'coppice'`,
      'postgres',
    );
    expect(row!.n).toBeLessThanOrEqual(3);
  });

  test('whoever gives up waiting is not waited for', async () => {
    const stop = new AbortController();
    let release = () => {};
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const holders = Array.from({ length: 3 }, () => sessions.use(id, as('admin'), () => held));
    const waiting = sessions.use(id, { role: 'admin', signal: stop.signal }, async () => 1);
    stop.abort(new Error('too late'));
    await expect(waiting).rejects.toThrow('too late');
    release();
    await Promise.all(holders);
    expect(await pidOf()).toBeGreaterThan(0);
  });
});

describe('ends', () => {
  test('a signal cancels what runs in the server', async () => {
    const stop = new AbortController();
    const work = sessions.use(id, { role: 'admin', signal: stop.signal }, async (client) => {
      const query = client.query('select pg_sleep(60)');
      stop.abort(new Error('enough'));
      await query;
    });
    await expect(work).rejects.toThrow('enough');
    const watcher = await running.connect(id, 'postgres');
    // The server ends the query and then the session; both take a moment.
    await expect
      .poll(
        async () => {
          const { rows } = await watcher.query(
            `select 1 from pg_stat_activity where query like 'select pg_sleep%'`,
          );
          return rows.length;
        },
        { timeout: 10_000 },
      )
      .toBe(0);
    await watcher.end();
  });

  test('an idle session that was ended from outside is not handed out', async () => {
    const pid = await pidOf();
    await running.query(id, `select pg_terminate_backend(${pid})`);
    expect(await pidOf()).not.toBe(pid);
  });

  test('the next use after kill -9 of the server works', async () => {
    await pidOf();
    const { signal, release } = await running.fleet.wake(id);
    process.kill(await running.postmasterPid(id), 'SIGKILL');
    if (!signal.aborted) await once(signal, 'abort');
    release();
    expect(await pidOf()).toBeGreaterThan(0);
  });

  test('the next use after a crash of one of its processes works', async () => {
    const pid = await pidOf();
    process.kill(pid, 'SIGKILL');
    // One that is already at work when the server ends all sessions is lost with them.
    await expect.poll(() => pidOf().catch(() => pid), { timeout: 10_000 }).not.toBe(pid);
  });

  test('nothing is held when the database is destroyed', async () => {
    await pidOf();
    await running.fleet.destroy(id);
    await expect(pidOf()).rejects.toMatchObject({ status: 404 });
  });
});
