// Random transactions on several connections, branches at random instants taken while they go on:
// every branch holds exactly the transactions committed up to its instant, which the log itself,
// read with pg_walinspect, has the last word on.
import type pg from 'pg';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { randomFrom, seed, sizeOf, timeLimitMs } from '../../../../../../scripts/soak-sizes.ts';
import { takeBase } from './bases.ts';
import { createClonePool } from './clone-pool.ts';
import { openTestEngine, type TestEngine } from './open-test-engine.ts';
import { moveWal, segmentAt, segmentBytesOf, walDirectories } from './wal.ts';

const instants = sizeOf('instants');
const writers = 4;

let test: TestEngine;
beforeAll(async () => {
  test = await openTestEngine();
});
afterAll(() => test.close());

it(
  `holds exactly what was committed, at ${instants} instants (seed ${seed})`,
  async () => {
    const random = randomFrom(seed);
    const parent = await test.create();
    await test.query(parent, 'create extension pg_walinspect', 'postgres');
    await test.query(
      parent,
      'create table log(xid xid8 primary key, filler text); create table other(i int)',
    );
    const superuser = await test.connect(parent, 'postgres');
    const written = new Set<string>();
    const commits = createCommitLog(superuser, written);
    await commits.read();

    let isOver = false;
    const writing = Promise.all(
      Array.from({ length: writers }, async () => {
        const client = await test.connect(parent);
        while (!isOver) await transaction(client, random, written);
        await client.end();
      }),
    );
    try {
      for (let done = 0; done < instants; done++) {
        await commits.read();
        // Replay starts at different bases, and crosses from one to the next.
        if (done % Math.ceil(instants / 3) === 1) {
          await renew(parent, () => commits.read());
        }
        const at = commits.pick(random);
        const child = await test.branch(parent, at);
        await commits.read();
        const rows = await test.query(child, 'select xid::text as xid from log');
        const found = new Set(rows.map(({ xid }) => String(xid)));
        const expected = commits.upTo(at);
        expect([...expected].filter((xid) => !found.has(xid))).toEqual([]);
        expect([...found].filter((xid) => !expected.has(xid))).toEqual([]);
        await test.engine.destroy(child);
      }
    } finally {
      isOver = true;
      await writing;
    }
    expect(commits.count()).toBeGreaterThan(instants);
  },
  timeLimitMs(120_000),
);

/** As upkeep does; but the log is read before it is moved to where pg_walinspect does not look. */
async function renew(id: string, beforeMove: () => Promise<void>): Promise<void> {
  const paths = test.fleet.paths(id);
  const pool = createClonePool(1);
  const { startLsn } = await test.fleet.withRunning(id, (client) => takeBase(pool, client, paths));
  await pool.close();
  await beforeMove();
  await moveWal(paths, segmentAt(startLsn, await segmentBytesOf(walDirectories(paths))));
}

/** Commits most of the time, in one or several steps. */
async function transaction(
  client: pg.Client,
  random: () => number,
  written: Set<string>,
): Promise<void> {
  await client.query('begin');
  const { rows } = await client.query<{ xid: string }>(
    `insert into log values (pg_current_xact_id(), repeat('x', $1)) returning xid::text as xid`,
    [Math.floor(random() * 2000)],
  );
  written.add(rows[0]!.xid);
  if (random() < 0.2) await client.query('savepoint s; insert into other values (1)');
  await client.query(random() < 0.1 ? 'rollback' : 'commit');
  if (random() < 0.5) await new Promise((resolve) => setTimeout(resolve, random() * 10));
}

/** What the log says was committed when, in its order; read before segments are moved away. */
function createCommitLog(client: pg.Client, written: ReadonlySet<string>) {
  const commits: { xid: string; atMicros: bigint }[] = [];
  let from: string | undefined;

  return {
    count: () => commits.length,
    async read(): Promise<void> {
      const { rows } = await client.query<{ lsn: string }>(
        'select pg_current_wal_flush_lsn()::text as lsn',
      );
      const to = rows[0]!.lsn;
      if (from !== undefined && from !== to) {
        const { rows: found } = await client.query<{ xid: string; micros: string; end: string }>(
          `select xid::text, end_lsn::text as end,
             (extract(epoch from split_part(description, ';', 1)::timestamptz)
               * 1000000)::bigint::text as micros
           from pg_get_wal_records_info($1, $2)
           where resource_manager = 'Transaction' and record_type = 'COMMIT'
           order by start_lsn`,
          [from, to],
        );
        for (const { xid, micros } of found) commits.push({ xid, atMicros: BigInt(micros) });
      }
      from = to;
    },
    /** Any instant that has been, sometimes the very microsecond of a commit or the one before. */
    pick(random: () => number): bigint {
      const any = () => commits[Math.floor(random() * commits.length)]!.atMicros;
      if (commits.length === 0) return BigInt(Date.now()) * 1000n;
      const choice = random();
      if (choice < 0.25) return any();
      if (choice < 0.4) return any() - 1n;
      // Just now: the newest commit is in a segment that is not full.
      if (choice < 0.6) return BigInt(Date.now()) * 1000n;
      const [a, b] = [any(), any()];
      return a + ((b - a) * BigInt(Math.floor(random() * 1000))) / 1000n;
    },
    upTo(atMicros: bigint): Set<string> {
      const end = commits.findIndex((commit) => commit.atMicros > atMicros);
      const before = end === -1 ? commits : commits.slice(0, end);
      return new Set(before.map(({ xid }) => xid).filter((xid) => written.has(xid)));
    },
  };
}
