import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { OutsideHistory } from '../../engine.ts';
import { nowMicros, openTestEngine, type TestEngine } from './open-test-engine.ts';

// On a busy machine a copy and a start take their time.
vi.setConfig({ testTimeout: 120_000 });

let test: TestEngine;
beforeAll(async () => {
  test = await openTestEngine();
});
afterAll(() => test.close());

const numbers = async (id: string) =>
  (await test.query(id, 'select i from t order by i')).map(({ i }) => i);

describe('a branch of now', () => {
  it('holds what the parent holds, and neither sees what the other does next', async () => {
    const parent = await test.create();
    await test.query(parent, 'create table t(i int primary key); insert into t values (1), (2)');
    const child = await test.branch(parent);
    await test.query(parent, 'insert into t values (3)');
    await test.query(child, 'insert into t values (4)');
    expect(await numbers(child)).toEqual([1, 2, 4]);
    expect(await numbers(parent)).toEqual([1, 2, 3]);
  });

  it('leaves the connections of the parent alone', async () => {
    const parent = await test.create();
    const client = await test.connect(parent);
    await client.query('create table t(i int)');
    await client.query('begin; insert into t values (1)');
    const child = await test.branch(parent);
    await client.query('commit');
    expect(await numbers(child)).toEqual([]);
    expect(await numbers(parent)).toEqual([1]);
    await client.end();
  });

  it('is a parent itself, and outlives its own parent', async () => {
    const parent = await test.create();
    await test.query(parent, 'create table t(i int); insert into t values (1)');
    const child = await test.branch(parent);
    await test.query(child, 'insert into t values (2)');
    await test.engine.destroy(parent);
    const grandchild = await test.branch(child);
    await test.query(grandchild, 'insert into t values (3)');
    await test.engine.destroy(child);
    expect(await numbers(grandchild)).toEqual([1, 2, 3]);
  });
});

describe('a branch of an instant', () => {
  it('holds what was committed up to then, also through restarts and sleep', async () => {
    const parent = await test.create();
    const instants: bigint[] = [];
    for (let round = 0; round < 3; round++) {
      const client = await test.connect(parent);
      if (round === 0) await client.query('create table t(i int)');
      await client.query('insert into t values ($1)', [round * 2]);
      instants.push(await nowMicros(client));
      await client.query('insert into t values ($1)', [round * 2 + 1]);
      instants.push(await nowMicros(client));
      await client.end();
      if (round === 1) await crash(parent);
    }
    for (const [index, instant] of instants.entries()) {
      const child = await test.branch(parent, instant);
      expect(await numbers(child)).toEqual(Array.from({ length: index + 1 }, (_, i) => i));
      await test.engine.destroy(child);
    }
  });

  it('of a branch reaches into its own history', async () => {
    const parent = await test.create();
    await test.query(parent, 'create table t(i int); insert into t values (1)');
    const child = await test.branch(parent);
    const client = await test.connect(child);
    const atBirth = await nowMicros(client);
    await client.query('insert into t values (2)');
    const between = await nowMicros(client);
    await client.query('insert into t values (3)');
    await test.engine.destroy(parent);
    const first = await test.branch(child, atBirth);
    const second = await test.branch(child, between);
    expect(await numbers(first)).toEqual([1]);
    expect(await numbers(second)).toEqual([1, 2]);
    // And a branch of an instant has one, too.
    const third = await test.connect(second);
    await third.query('insert into t values (7)');
    const then = await nowMicros(third);
    await third.query('insert into t values (8)');
    expect(await numbers(await test.branch(second, then))).toEqual([1, 2, 7]);
  });

  it('is refused outside the history', async () => {
    const parent = await test.create();
    const { from, to } = await test.engine.history(parent);
    expect(from.getTime()).toBeLessThanOrEqual(to.getTime());
    const early = BigInt(from.getTime() - 1000) * 1000n;
    await expect(test.branch(parent, early)).rejects.toThrow(OutsideHistory);
    const late = BigInt(Date.now() + 3_600_000) * 1000n;
    await expect(test.branch(parent, late)).rejects.toThrow(OutsideHistory);
  });
});

/** Ends the server as a crash does; the next use starts it again. */
async function crash(id: string): Promise<void> {
  const lease = await test.engine.wake(id);
  const gone = new Promise<void>((done) => lease.signal.addEventListener('abort', () => done()));
  const pidFile = await readFile(join(test.fleet.paths(id).data, 'postmaster.pid'), 'utf8');
  process.kill(Number(pidFile.split('\n')[0]), 'SIGKILL');
  await gone;
  lease.release();
}
