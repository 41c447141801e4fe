// What a parent feels of being branched: TPC-B transactions of four clients, first alone, then while
// one branch after the other is taken.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { CreatedDatabase } from '../../../test/support/api.ts';
import { type FleetService, startFleetService } from '../fleet-service.ts';
import { type BenchCase, type BenchContext, type Row, summarize, timed } from '../harness.ts';
import { openReflinkMount } from '../reflink-mount.ts';

const clientCount = 4;
const accountCount = 100_000;

const setUp = `
  create table branches(bid int primary key, balance bigint not null default 0);
  create table tellers(tid int primary key, balance bigint not null default 0);
  create table accounts(aid int primary key, balance bigint not null default 0, filler char(84));
  create table history(tid int, aid int, delta int, at timestamptz default now());
  insert into branches values (1);
  insert into tellers select generate_series(1, 10);
  insert into accounts select generate_series(1, ${accountCount}), 0, '';
  create table filler as select i, repeat(md5(i::text), 30) as text from generate_series(1, 500000) i;
  checkpoint`;

export const branchLoad: BenchCase = {
  name: 'branch-load',
  about:
    'TPC-B transactions of four clients on a database of 0.5 GB, alone and while it is branched again and again: how long a transaction takes, and the longest that any of them stood still.',
  async run(context) {
    const rows: Row[] = [];
    const mount = await openReflinkMount(20);
    if (mount)
      try {
        rows.push(...(await onFilesystem('XFS', mount.path, context)));
      } finally {
        await mount.close();
      }
    else rows.push({ what: 'XFS', note: 'not measured: needs root and xfsprogs' });
    const directory = await mkdtemp(join(tmpdir(), 'coppice-bench-load-'));
    try {
      rows.push(...(await onFilesystem('this disk', directory, context)));
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
    return rows;
  },
};

async function onFilesystem(
  where: string,
  directory: string,
  { quick, progress }: BenchContext,
): Promise<Row[]> {
  const fleet = await startFleetService(['--pool-size', '2'], { dataDir: join(directory, 'data') });
  try {
    progress(`${where}: filling`);
    const parent = await fleet.create('parent');
    const client = await fleet.connect(parent);
    await client.query(setUp);
    await client.end();
    progress(`${where}: transactions alone`);
    const alone = await whileLoaded(fleet, parent, () => delay(quick ? 2_000 : 10_000));
    progress(`${where}: transactions while it is branched`);
    const branches: number[] = [];
    const branched = await whileLoaded(fleet, parent, async () => {
      for (let round = 0; round < (quick ? 2 : 10); round++) {
        branches.push(await timed(() => branchAndForget(fleet, parent.id, `branch ${round}`)));
        await delay(500);
      }
    });
    const longest = (durations: number[]) => `longest ${Math.max(...durations).toFixed(0)} ms`;
    return [
      { what: `${where}: a transaction, alone`, ...summarize(alone), note: longest(alone) },
      {
        what: `${where}: a transaction, while branched`,
        ...summarize(branched),
        note: longest(branched),
      },
      { what: `${where}: a branch under that load`, ...summarize(branches) },
    ];
  } finally {
    await fleet.stop();
  }
}

/** Durations of the transactions that ran while `work` did. */
async function whileLoaded(
  fleet: FleetService,
  parent: CreatedDatabase,
  work: () => Promise<void>,
): Promise<number[]> {
  const durations: number[] = [];
  let isOver = false;
  const below = (limit: number) => 1 + Math.floor(Math.random() * limit);
  const load = Promise.all(
    Array.from({ length: clientCount }, async () => {
      const client = await fleet.connect(parent);
      while (!isOver) {
        const delta = below(10_000) - 5_000;
        const [aid, tid] = [below(accountCount), below(10)];
        const transaction = `begin;
          update accounts set balance = balance + ${delta} where aid = ${aid};
          update tellers set balance = balance + ${delta} where tid = ${tid};
          update branches set balance = balance + ${delta} where bid = 1;
          insert into history(tid, aid, delta) values (${tid}, ${aid}, ${delta});
          commit`;
        durations.push(await timed(() => client.query(transaction)));
      }
      await client.end();
    }),
  );
  try {
    await work();
  } finally {
    isOver = true;
    await load;
  }
  return durations;
}

async function branchAndForget(fleet: FleetService, parentId: string, name: string): Promise<void> {
  const { status, body } = await fleet.account.post(`/customer/databases/${parentId}/branch`, {
    name,
  });
  if (status !== 201) throw new Error(`branch: ${status} ${JSON.stringify(body)}`);
  await fleet.account.delete(`/customer/databases/${body.id}`);
}

const delay = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));
