import { once } from 'node:events';
import { cp, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, test } from 'vitest';
import { AppError } from '../../kernel/app-error.ts';
import { createInstances } from './instance.ts';
import {
  databaseSchemaDirectory,
  openTestFleet,
  type TestFleet,
  type TestFleetOptions,
} from './open-test-fleet.ts';

let shared: TestFleet | undefined;
const opened: TestFleet[] = [];

/** With options of its own a fleet of its own; else the one that tests share. */
async function open(options?: TestFleetOptions): Promise<TestFleet> {
  if (!options) {
    shared ??= await openTestFleet();
    return shared;
  }
  const fleet = await openTestFleet(options);
  opened.push(fleet);
  return fleet;
}

afterEach(async () => {
  for (const fleet of opened.splice(0)) await fleet.close();
});
afterAll(() => shared?.close());

/** The next time that the database goes away. */
const goneOf = (signal: AbortSignal) =>
  signal.aborted ? Promise.resolve() : once(signal, 'abort');

/** Resolves when the fleet has put `id` to sleep. */
function asleep({ fleet }: TestFleet, id: string): Promise<void> {
  return new Promise((resolve) => {
    fleet.onSleep((slept) => slept === id && resolve());
  });
}

describe('waking', () => {
  test('however many ask, it starts once', async () => {
    const { fleet, create } = await open({});
    const id = await create();
    const leases = await Promise.all(Array.from({ length: 20 }, () => fleet.wake(id)));
    expect(fleet.stats()).toMatchObject({ awake: 1, wakes: 1, leases: 20 });
    expect(new Set(leases.map((lease) => lease.socketDirectory)).size).toBe(1);
    for (const lease of leases) lease.release();
    for (const lease of leases) lease.release();
    expect(fleet.stats().leases).toBe(0);
  });

  test("admin's password is set before anyone gets in, and only once", async () => {
    const { fleet, create, query, postmasterPid } = await open();
    const id = await create();
    const [row] = await query(
      id,
      `select rolpassword from pg_authid where rolname = 'admin'`,
      'postgres',
    );
    expect(row!.rolpassword).toMatch(/^SCRAM-SHA-256\$/);
    await query(id, `alter role admin password null`, 'postgres');
    const signal = (await fleet.wake(id)).signal;
    process.kill(await postmasterPid(id), 'SIGKILL');
    await goneOf(signal);
    const [later] = await query(
      id,
      `select rolpassword from pg_authid where rolname = 'admin'`,
      'postgres',
    );
    expect(later!.rolpassword).toBeNull();
  });

  test('an unknown database is 404, and leaves nothing behind', async () => {
    const { fleet } = await open({});
    await expect(fleet.wake('db_none')).rejects.toMatchObject({ status: 404 });
    expect(fleet.stats()).toMatchObject({ starting: 0, awake: 0 });
    expect(fleet.isAwake('db_none')).toBe(false);
    await fleet.destroy('db_none');
  });

  test('one that does not start is 500 for all who wait, and can be tried again', async () => {
    const { fleet, create, query } = await open({});
    const id = await create();
    const file = join(fleet.paths(id).data, 'PG_VERSION');
    const good = await readFile(file, 'utf8');
    await writeFile(file, '9\n');
    const results = await Promise.allSettled([fleet.wake(id), fleet.wake(id)]);
    for (const result of results)
      expect(result).toMatchObject({ status: 'rejected', reason: { status: 500 } });
    expect(fleet.stats()).toMatchObject({ failedStarts: 1, starting: 0 });
    await writeFile(file, good);
    expect(await query(id, 'select 1 as one')).toEqual([{ one: 1 }]);
  });

  test('steps of a newer release are applied before anyone gets in', async () => {
    const first = await openTestFleet();
    const id = await first.create();
    await first.query(id, 'create table kept (a int)');
    await first.close({ keepData: true });

    const newer = await mkdtemp('/tmp/coppice-steps-');
    await cp(databaseSchemaDirectory, newer, { recursive: true });
    await writeFile(join(newer, '9999-later.sql'), 'create table coppice.later (a int)');
    const second = await open({ dataDir: first.dataDir, schemaDirectory: newer });
    await second.fleet.reconcile(new Set([id]));
    expect(await second.query(id, 'select * from coppice.later', 'postgres')).toEqual([]);
    expect(await second.query(id, 'select * from kept')).toEqual([]);
    const fresh = await second.create();
    expect(await second.query(fresh, 'select * from coppice.later', 'postgres')).toEqual([]);
    await rm(newer, { recursive: true });
  });
});

describe('sleeping', () => {
  test('an idle database goes to sleep; one in use does not', async () => {
    const fleetUnderTest = await open({ idleSeconds: 0.2 });
    const { fleet, create, query } = fleetUnderTest;
    const [idle, used] = [await create(), await create()];
    const lease = await fleet.wake(used);
    const slept = asleep(fleetUnderTest, idle);
    await query(idle, 'create table t as select 1 as a');
    await slept;
    expect(fleet.isAwake(used)).toBe(true);
    expect(lease.signal.aborted).toBe(false);
    expect(await query(idle, 'select * from t')).toEqual([{ a: 1 }]);
    const usedSlept = asleep(fleetUnderTest, used);
    lease.release();
    await usedSlept;
  });

  test('the one idle longest makes room; one in use never does', async () => {
    const { fleet, create, query } = await open({ maxRunning: 2 });
    const [a, b, c] = [await create(), await create(), await create()];
    await query(a, 'select 1');
    await query(b, 'select 1');
    await query(c, 'select 1');
    expect([a, b, c].map(fleet.isAwake)).toEqual([false, true, true]);
    const held = await fleet.wake(b);
    await query(a, 'select 1');
    expect([a, b, c].map(fleet.isAwake)).toEqual([true, true, false]);
    held.release();
  });

  test('when all are in use, a wake waits for room', async () => {
    const { fleet, create } = await open({ maxRunning: 1 });
    const [a, b] = [await create(), await create()];
    const held = await fleet.wake(a);
    const waiting = fleet.wake(b);
    await expect(Promise.race([waiting, Promise.resolve('waits')])).resolves.toBe('waits');
    held.release();
    (await waiting).release();
    expect([a, b].map(fleet.isAwake)).toEqual([false, true]);
  });

  test('wakes and sleeps that cross each other leave it usable', async () => {
    const { fleet, create, query } = await open({ idleSeconds: 0.01, maxRunning: 3 });
    const ids = await Promise.all(Array.from({ length: 4 }, create));
    for (const id of ids) await query(id, 'create table t (n serial)');
    await Promise.all(
      ids.flatMap((id) =>
        Array.from({ length: 4 }, () => query(id, 'insert into t default values')),
      ),
    );
    for (const id of ids)
      expect(await query(id, 'select count(*)::int as n from t')).toEqual([{ n: 4 }]);
    expect(fleet.stats().crashes).toBe(0);
  });
});

describe('crashes', () => {
  test('kill -9 under load: holders hear of it, the next query works, nothing committed is lost', async () => {
    const { fleet, create, connect, query, postmasterPid } = await open({});
    const id = await create();
    await query(id, 'create table t (n int primary key)');
    const lease = await fleet.wake(id);
    const pid = await postmasterPid(id);
    const acknowledged: number[] = [];
    let next = 0;
    const writers = Array.from({ length: 4 }, async () => {
      const client = await connect(id);
      try {
        for (;;) {
          const n = next++;
          await client.query('insert into t values ($1)', [n]);
          acknowledged.push(n);
          if (acknowledged.length === 200) process.kill(pid, 'SIGKILL');
        }
      } catch {
        await client.end().catch(() => {});
      }
    });
    await Promise.all(writers);
    await goneOf(lease.signal);
    lease.release();
    const found = new Set((await query(id, 'select n from t')).map((row) => row.n));
    expect(acknowledged.filter((n) => !found.has(n))).toEqual([]);
    expect(fleet.stats()).toMatchObject({ crashes: 1, awake: 1 });
  });

  test('a backend that outlives its killed server is ended before the next start', async () => {
    const { fleet, create, connect, query, postmasterPid } = await open();
    const id = await create();
    const lease = await fleet.wake(id);
    const busy = await connect(id);
    const pid = await postmasterPid(id);
    const spinning = busy
      .query(
        `do $$ declare t timestamptz := clock_timestamp() + '20 s'; begin while clock_timestamp() < t loop end loop; end $$`,
      )
      .catch(() => {});
    await query(id, `select pg_sleep(0.1)`);
    process.kill(pid, 'SIGKILL');
    await goneOf(lease.signal);
    expect(await query(id, 'select 1 as one')).toEqual([{ one: 1 }]);
    await spinning;
  });

  test('a stale pid file that names a living process of someone else does not block', async () => {
    const { fleet, create, query, postmasterPid } = await open();
    const id = await create();
    const lease = await fleet.wake(id);
    process.kill(await postmasterPid(id), 'SIGKILL');
    await goneOf(lease.signal);
    const file = join(fleet.paths(id).data, 'postmaster.pid');
    const lines = (await readFile(file, 'utf8')).split('\n');
    await writeFile(file, [String(process.pid), ...lines.slice(1)].join('\n'));
    expect(await query(id, 'select 1 as one')).toEqual([{ one: 1 }]);
  });
});

describe('making and removing', () => {
  test('destroy ends sessions at once, frees the files, and the id is unknown afterwards', async () => {
    const { fleet, create, connect, host } = await open();
    const id = await create();
    const client = await connect(id);
    const lease = await fleet.wake(id);
    await fleet.destroy(id);
    expect(lease.signal.aborted).toBe(true);
    await expect(client.query('select 1')).rejects.toThrow();
    await expect(fleet.wake(id)).rejects.toMatchObject({ status: 404 });
    expect(await readdir(host.layout.instances)).not.toContain(id);
    await fleet.destroy(id);
  });

  test('destroy while it starts', async () => {
    const { fleet, create } = await open({});
    const id = await create();
    const waking = fleet.wake(id).then(
      (lease) => lease.release(),
      (error: AppError) => expect(error.status).toBe(404),
    );
    await fleet.destroy(id);
    await waking;
    expect(fleet.stats()).toMatchObject({ awake: 0, starting: 0 });
    await expect(fleet.wake(id)).rejects.toBeInstanceOf(AppError);
  });

  test('held asleep, wakes wait; awake, it cannot be held', async () => {
    const { fleet, create } = await open();
    const id = await create();
    const order: string[] = [];
    let waking: Promise<unknown> = Promise.resolve();
    const held = await fleet.ifAsleep(id, async (paths) => {
      waking = fleet.wake(id).then((lease) => {
        order.push('awake');
        lease.release();
      });
      const files = await readdir(paths.data);
      order.push('held');
      return files.includes('postmaster.pid');
    });
    expect(held).toEqual({ ran: true, value: false });
    await waking;
    expect(order).toEqual(['held', 'awake']);
    expect(await fleet.ifAsleep(id, async () => 1)).toEqual({ ran: false });
  });

  test('a create that fails half-way leaves nothing', async () => {
    const { fleet, create, host } = await open({
      hooks: { onCreate: () => Promise.reject(new Error('disk full')) },
    });
    await expect(create()).rejects.toThrow('disk full');
    expect(await readdir(host.layout.instances)).toEqual([]);
    expect(await readdir(host.layout.pool)).toEqual([]);
    expect(fleet.stats().awake).toBe(0);
  });

  test('an adopted draft keeps running and becomes the database', async () => {
    const { fleet, create, query, host } = await open();
    const source = await create();
    await query(source, 'create table t as select 42 as a');
    await fleet.wake(source).then((lease) => lease.release());
    const draft = await fleet.prepareDraft();
    const template = await fleet.templateData(source);
    await rm(draft.paths.data, { recursive: true });
    await host.trees.copy(template!, draft.paths.data, { owner: draft.owner });
    const server = await fleet.startDraft(draft, {});
    await fleet.adopt(draft, 'db_adopted', {
      adminVerifier: 'SCRAM-SHA-256$4096:AAAA$AAAA:AAAA',
      running: server,
    });
    expect(fleet.isAwake('db_adopted')).toBe(true);
    expect(await query('db_adopted', 'select current_user as who')).toEqual([{ who: 'admin' }]);
    await fleet.destroy('db_adopted');
    expect(await fleet.exists('db_adopted')).toBe(false);
  });
});

test('only the transitions of the picture are possible', () => {
  const instances = createInstances(() => {});
  const it = instances.get('x');
  expect(() => instances.move(it, { name: 'stopping', done: Promise.resolve() })).toThrow();
  instances.move(it, { name: 'starting', done: Promise.resolve() });
  expect(instances.running).toBe(1);
  expect(() => instances.move(it, { name: 'removing', done: Promise.resolve() })).toThrow();
  expect(() => instances.move(it, { name: 'held', done: Promise.resolve() })).toThrow();
  instances.move(it, { name: 'asleep' });
  expect(instances.running).toBe(0);
});
