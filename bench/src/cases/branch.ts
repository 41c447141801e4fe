import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { type FleetService, startFleetService } from '../fleet-service.ts';
import { type BenchCase, type BenchContext, type Row, summarize, timed } from '../harness.ts';
import { openPlainPostgres } from '../plain-postgres.ts';
import { openReflinkMount } from '../reflink-mount.ts';

const run = promisify(execFile);

interface Size {
  name: string;
  /** Rows of about a kilobyte. */
  rows: number;
}

const fill = (rows: number) =>
  `create table filler as select i, repeat(md5(i::text), 30) as text from generate_series(1, ${rows}) i`;

export const branch: BenchCase = {
  name: 'branch',
  about:
    'A branch of a running database, from the request to the first row over a connection of its own, on XFS with shared blocks and on the disk of this machine; beside it `cp -a` and `sync` of the same directory, `CREATE DATABASE … TEMPLATE` on a stock Postgres of the same binaries, and a copy through `COPY` (what dump and restore come to at best).',
  async run(context) {
    const sizes: Size[] = context.quick
      ? [
          { name: '31 MB', rows: 0 },
          { name: '128 MB', rows: 100_000 },
        ]
      : [
          { name: '31 MB', rows: 0 },
          { name: '1 GB', rows: 1_000_000 },
          { name: '5 GB', rows: 5_000_000 },
        ];
    const rows: Row[] = [];
    const directory = await mkdtemp(join(tmpdir(), 'coppice-bench-branch-'));
    try {
      rows.push(...(await onFilesystem('this disk', directory, sizes, context)));
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
    // What one part leaves to be written is not the next one's burden.
    await run('sync');
    const mount = await openReflinkMount(context.quick ? 8 : 40);
    if (mount)
      try {
        rows.unshift(...(await onFilesystem('XFS', mount.path, sizes, context)));
      } finally {
        await mount.close();
      }
    else rows.unshift({ what: 'XFS', note: 'not measured: needs root and xfsprogs' });
    await run('sync');
    rows.push(...(await peers(sizes, context)));
    return rows;
  },
};

async function onFilesystem(
  where: string,
  directory: string,
  sizes: Size[],
  context: BenchContext,
): Promise<Row[]> {
  const sharesBlocks = where === 'XFS';
  const dataDir = join(directory, 'data');
  // The log of filling is of no interest: its history is kept short.
  const fleet = await startFleetService(['--pool-size', '2', '--history-limit-mb', '64'], {
    dataDir,
  });
  const rows: Row[] = [];
  const p50s: number[] = [];
  try {
    for (const { name, rows: count } of sizes) {
      context.progress(`${where}: filling ${name}`);
      const parent = await fleet.create(`parent ${name}`);
      const client = await fleet.connect(parent);
      if (count > 0) await client.query(fill(count));
      await client.query('vacuum (freeze, analyze)');
      await client.query('checkpoint');
      const durations: number[] = [];
      const copies: number[] = [];
      const rounds = context.quick ? 2 : sharesBlocks || count === 0 ? 10 : 3;
      for (let round = 0; round < rounds; round++) {
        context.progress(`${where}: branch of ${name}, ${round}`);
        let id = '';
        durations.push(
          await timed(async () => {
            id = await branchAndAsk(fleet, parent.id, `${name} ${round}`);
          }),
        );
        await fleet.account.delete(`/customer/databases/${id}`);
        if (!sharesBlocks) copies.push(await timed(() => copy(dataDir, parent.id)));
        await rm(join(dataDir, 'copy'), { recursive: true, force: true });
      }
      await client.end();
      const timing = summarize(durations);
      p50s.push(timing.p50);
      rows.push({
        what: `${where}: branch of ${name}`,
        ...timing,
        ...(copies.length > 0 && count > 0
          ? {
              target: {
                of: 'speed of cp -a and sync',
                value: summarize(copies).p50 / timing.p50,
                atLeast: 0.8,
              },
            }
          : {}),
      });
      if (copies.length > 0)
        rows.push({ what: `${where}: cp -a and sync of ${name}`, ...summarize(copies) });
      await fleet.account.delete(`/customer/databases/${parent.id}`);
    }
    if (sharesBlocks) {
      const [small, large] = [p50s[0]!, p50s.at(-1)!];
      const name = sizes.at(-1)!.name;
      rows.push(
        {
          what: `${where}: ${name} against 31 MB`,
          target: { of: 'p50 / p50', value: large / small, atMost: 1.5 },
        },
        { what: '', target: { of: `p50 of ${name}, ms`, value: large, atMost: 400 } },
      );
    }
    return rows;
  } finally {
    await fleet.stop();
  }
}

async function branchAndAsk(fleet: FleetService, parentId: string, name: string): Promise<string> {
  const { status, body } = await fleet.account.post(`/customer/databases/${parentId}/branch`, {
    name,
  });
  if (status !== 201) throw new Error(`branch: ${status} ${JSON.stringify(body)}`);
  const credentials = await fleet.account.get(`/customer/databases/${body.id}/credentials`);
  const client = await fleet.connect({ ...body, admin_password: credentials.body.admin_password });
  await client.query('select 1');
  await client.end();
  return body.id;
}

/** As durable as a branch is. */
async function copy(dataDir: string, id: string): Promise<void> {
  await run('cp', ['-a', join(dataDir, 'instances', id, 'data'), join(dataDir, 'copy')]).catch(
    (error: Error & { stderr?: string }) => {
      // The server is running: files of its log come and go.
      if (!/^(cp: cannot \w+ '.*': No such file or directory\n)+$/.test(error.stderr ?? ''))
        throw error;
    },
  );
  await run('sync', ['-f', dataDir]);
}

async function peers(sizes: Size[], context: BenchContext): Promise<Row[]> {
  const plain = await openPlainPostgres();
  const server = await plain.start({ max_wal_size: '4GB' });
  const connect = async (database: string) => {
    const client = new pg.Client({ host: server.socketDirectory, user: 'postgres', database });
    await client.connect();
    return client;
  };
  const admin = await connect('postgres');
  const rows: Row[] = [];
  try {
    for (const { name, rows: count } of sizes) {
      context.progress(`stock Postgres: ${name}`);
      await admin.query('create database source');
      const source = await connect('source');
      if (count > 0) await source.query(fill(count));
      else await source.query('create table filler(i int, text text)');
      await source.query('vacuum (freeze, analyze)');
      await source.end();
      const templated = await timed(() =>
        admin.query('create database copied template source strategy file_copy'),
      );
      rows.push({ what: `CREATE DATABASE … TEMPLATE of ${name}`, p50: templated });
      const dumped = await timed(() => dumpAndRestore(server.socketDirectory, admin)).catch(
        () => undefined,
      );
      rows.push({
        what: `COPY out and in of ${name}`,
        ...(dumped === undefined ? { note: 'needs psql' } : { p50: dumped }),
      });
      for (const each of ['source', 'copied', 'restored'])
        await admin.query(`drop database if exists ${each}`);
    }
  } finally {
    await admin.end();
    await server.stop();
    await plain.close();
  }
  return rows;
}

async function dumpAndRestore(host: string, admin: pg.Client): Promise<void> {
  await admin.query('create database restored');
  const psql = (database: string) => `psql -X -q -h ${host} -U postgres -d ${database}`;
  await run('sh', [
    '-c',
    `${psql('restored')} -c 'create table filler(i int, text text)' &&
     ${psql('source')} -c 'copy filler to stdout' | ${psql('restored')} -c 'copy filler from stdin'`,
  ]);
}
