// Branches of a parent under a TPC-B load: in every branch the sums agree, every index and heap is
// sound, and the parent's sessions go on.
import type pg from 'pg';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { sizeOf, timeLimitMs } from '../../../../../../scripts/soak-sizes.ts';
import { openTestEngine, type TestEngine } from './open-test-engine.ts';

const branchCount = sizeOf('loaded-branches');
const clientCount = 4;
const accountCount = 20_000;
const tellerCount = 10;

let test: TestEngine;
beforeAll(async () => {
  test = await openTestEngine();
});
afterAll(() => test.close());

it(
  `${branchCount} branches under load are whole`,
  async () => {
    const parent = await test.create();
    await test.query(
      parent,
      `create table branches(bid int primary key, balance bigint not null default 0);
       create table tellers(tid int primary key, balance bigint not null default 0);
       create table accounts(aid int primary key, balance bigint not null default 0, filler char(84));
       create table history(tid int, aid int, delta int, at timestamptz default now());
       create index on history (aid);
       insert into branches values (1);
       insert into tellers select generate_series(1, ${tellerCount});
       insert into accounts select generate_series(1, ${accountCount}), 0, ''`,
    );
    let isOver = false;
    let transactions = 0;
    let longestMs = 0;
    const load = Promise.all(
      Array.from({ length: clientCount }, async () => {
        const client = await test.connect(parent);
        while (!isOver) {
          const startedAt = performance.now();
          await transfer(client);
          longestMs = Math.max(longestMs, performance.now() - startedAt);
          transactions++;
        }
        await client.end();
      }),
    );
    try {
      for (let i = 0; i < branchCount; i++) {
        const before = transactions;
        const child = await test.branch(parent);
        expect(transactions).toBeGreaterThan(before);
        await expectWhole(child, before);
        await test.engine.destroy(child);
      }
    } finally {
      isOver = true;
      await load;
    }
    // A fast checkpoint is felt, no more than that.
    expect(longestMs).toBeLessThan(10_000);
    await expectWhole(parent, transactions);
  },
  timeLimitMs(90_000),
);

async function transfer(client: pg.Client): Promise<void> {
  const delta = Math.floor(Math.random() * 10_001) - 5_000;
  const aid = 1 + Math.floor(Math.random() * accountCount);
  const tid = 1 + Math.floor(Math.random() * tellerCount);
  await client.query(
    `begin;
     update accounts set balance = balance + ${delta} where aid = ${aid};
     update tellers set balance = balance + ${delta} where tid = ${tid};
     update branches set balance = balance + ${delta} where bid = 1;
     insert into history(tid, aid, delta) values (${tid}, ${aid}, ${delta});
     commit`,
  );
}

async function expectWhole(id: string, atLeast: number): Promise<void> {
  const [sums] = await test.query(
    id,
    `select (select sum(balance)::text from accounts) as accounts,
            (select sum(balance)::text from tellers) as tellers,
            (select sum(balance)::text from branches) as branches,
            (select coalesce(sum(delta), 0)::text from history) as history,
            (select count(*)::int from history) as count`,
  );
  expect(new Set([sums!.accounts, sums!.tellers, sums!.branches, sums!.history]).size).toBe(1);
  expect(sums!.count).toBeGreaterThanOrEqual(atLeast);
  await test.query(id, 'create extension amcheck', 'postgres').catch(() => {});
  await test.query(
    id,
    `select bt_index_check(c.oid, true) from pg_class c join pg_am a on a.oid = c.relam
     where a.amname = 'btree' and c.relpersistence = 'p'`,
    'postgres',
  );
  const damaged = await test.query(
    id,
    `select c.relname, v.msg from pg_class c, lateral verify_heapam(c.oid) v where c.relkind = 'r'`,
    'postgres',
  );
  expect(damaged).toEqual([]);
}
