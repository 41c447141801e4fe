import { execFile } from 'node:child_process';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { CreatedDatabase } from '../../../test/support/api.ts';
import { type FleetService, startFleetService, untilMetric } from '../fleet-service.ts';
import {
  type BenchCase,
  type BenchContext,
  memoryMb,
  type Row,
  summarize,
  timed,
} from '../harness.ts';
import { openReflinkMount } from '../reflink-mount.ts';

const run = promisify(execFile);

export const density: BenchCase = {
  name: 'density',
  about:
    'Many databases on one machine: 1,000 asleep (on XFS with shared blocks where the machine can), and 100 awake at once, each with an open connection and a statement a second.',
  async run(context) {
    const mount = await openReflinkMount(60);
    const dataDir = mount?.path ?? (await mkdtemp(join(tmpdir(), 'coppice-bench-density-')));
    const fleet = await startFleetService(['--idle-seconds', '2'], { dataDir });
    try {
      const asleep = await manyAsleep(context, fleet, mount && (() => mount.usedBytes()), dataDir);
      const awake = await manyAwake(context, fleet, asleep.databases);
      return [...asleep.rows, ...awake];
    } catch (error) {
      // What the service had to say would go with it.
      throw new Error(`${(error as Error).message}\n${fleet.service.log().slice(-2000)}`, {
        cause: error,
      });
    } finally {
      await fleet.stop();
      await mount?.close().catch((error) => console.error(error.message));
      if (!mount) await rm(dataDir, { recursive: true, force: true });
    }
  },
};

async function manyAsleep(
  context: BenchContext,
  fleet: FleetService,
  usedBytes: (() => Promise<number>) | undefined,
  dataDir: string,
): Promise<{ rows: Row[]; databases: CreatedDatabase[] }> {
  const count = context.quick ? 30 : 1000;
  const wakes = context.quick ? 5 : 40;
  const databases: CreatedDatabase[] = [];
  const wakeMs = async (database: CreatedDatabase) =>
    timed(async () => {
      const client = await fleet.connect(database);
      await client.query('select 1');
      await client.end();
    });
  // The code that wakes and lists has run once before anything is measured.
  const early: number[] = [];
  for (let n = 0; n < wakes; n++) databases.push(await fleet.create(`early-${n}`));
  for (const database of databases) await wakeMs(database);
  await untilMetric(fleet, 'databases_awake', (n) => n === 0);
  for (const database of databases) early.push(await wakeMs(database));
  await fleet.http.request('GET', '/customer/databases');
  await untilMetric(fleet, 'databases_awake', (n) => n === 0);
  await untilMetric(fleet, 'databases_pooled', (n) => n === 24);
  const memoryBefore = memoryMb(fleet.service.pid);
  const usedBefore = await usedBytes?.();

  let next = databases.length;
  const createMs = await timed(() =>
    Promise.all(
      Array.from({ length: 4 }, async () => {
        for (let n = next++; n < count; n = next++) {
          databases.push(await fleet.create(`sleeper-${n}`));
          if (n % 20 === 0) context.progress(`${n}/${count} made`);
        }
      }),
    ),
  );
  await untilMetric(fleet, 'databases_pooled', (n) => n === 24);
  const made = count - wakes;
  const diskMb =
    usedBytes && usedBefore !== undefined ? ((await usedBytes()) - usedBefore) / made / 1e6 : NaN;
  const { stdout } = await run('du', ['-sm', join(dataDir, 'instances', databases.at(-1)!.id)]);
  const list = summarize(
    await repeat(context.quick ? 5 : 40, () => fleet.http.request('GET', '/customer/databases')),
  );
  const late: number[] = [];
  for (let n = 0; n < wakes; n++) {
    const database = databases[Math.floor(Math.random() * databases.length)]!;
    if (n % 5 === 0) context.progress(`wake ${n}/${wakes}`);
    await wakeMs(database);
  }
  await untilMetric(fleet, 'databases_awake', (n) => n === 0);
  for (const database of databases.slice(0, wakes)) late.push(await wakeMs(database));
  await untilMetric(fleet, 'databases_awake', (n) => n === 0);
  const grownMb = memoryMb(fleet.service.pid) - memoryBefore;
  const earlyWake = summarize(early);
  const lateWake = summarize(late);
  return {
    databases,
    rows: [
      {
        what: `${count} asleep: the service`,
        memory: memoryMb(fleet.service.pid),
        perSecond: (made / createMs) * 1000,
        target: { of: 'MB above none', value: grownMb, atMost: 60 },
        note: 'per second: databases made by 4 clients',
      },
      {
        what: `${count} asleep: server processes`,
        target: { of: 'processes', value: servers(dataDir).length, atMost: 0 },
      },
      {
        what: `${count} asleep: disk of an empty one`,
        note: `${Number.isNaN(diskMb) ? 'no shared blocks here' : `${diskMb.toFixed(1)} MB with shared blocks`}, ${stdout.split('\t')[0]} MB without`,
      },
      {
        what: `list of ${count}`,
        ...list,
        target: { of: 'p99 ms', value: list.p99, atMost: 100 },
      },
      { what: `wake to first row, of ${wakes}`, ...earlyWake },
      {
        what: `wake to first row, of ${count}`,
        ...lateWake,
        target: { of: 'p50 / that of few', value: lateWake.p50 / earlyWake.p50, atMost: 1.25 },
      },
    ],
  };
}

async function manyAwake(
  context: BenchContext,
  fleet: FleetService,
  databases: CreatedDatabase[],
): Promise<Row[]> {
  const count = context.quick ? 10 : 100;
  const seconds = context.quick ? 3 : 60;
  const durations: number[] = [];
  let errors = 0;
  context.progress(`${count} awake`);
  const clients = await Promise.all(databases.slice(0, count).map((one) => fleet.connect(one)));
  for (const client of clients) await client.query('create table if not exists light (n int)');
  const until = Date.now() + seconds * 1000;
  const load = Promise.all(
    clients.map(async (client, index) => {
      await sleep(index * (1000 / count));
      while (Date.now() < until) {
        await timed(() => client.query('insert into light values (1) returning n')).then(
          (ms) => durations.push(ms),
          () => errors++,
        );
        await sleep(1000);
      }
    }),
  );
  await sleep((seconds * 1000) / 2);
  const processes = servers(fleet.service.dataDir);
  const memory = processes.reduce((sum, pid) => sum + memoryMb(pid), 0);
  const serviceMemory = memoryMb(fleet.service.pid);
  await load;
  for (const client of clients) await client.end();
  return [
    {
      what: `${count} awake for ${seconds} s, a statement a second each`,
      ...summarize(durations),
      memory: memory + serviceMemory,
      target: { of: 'errors', value: errors, atMost: 0 },
      note: `${(memory / count).toFixed(1)} MB a database with one connection, ${serviceMemory.toFixed(0)} MB the service`,
    },
  ];
}

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

async function repeat(times: number, work: () => Promise<unknown>): Promise<number[]> {
  const durations: number[] = [];
  for (let n = 0; n < times; n++) durations.push(await timed(work));
  return durations;
}

/** Postgres processes that work below the instances of a data directory. */
function servers(dataDir: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        if (readFileSync(`/proc/${pid}/comm`, 'utf8').trim() !== 'postgres') return false;
        return readlinkSync(`/proc/${pid}/cwd`).startsWith(join(dataDir, 'instances'));
      } catch {
        return false;
      }
    })
    .map(Number);
}
