import pg from 'pg';
import { type FleetService, startFleetService } from '../fleet-service.ts';
import { type BenchCase, summarize, timed } from '../harness.ts';
import { openPlainPostgres, type PlainPostgres, type PreparedPostgres } from '../plain-postgres.ts';

/** Small transactions, random rows: the log that a busy application writes. */
const setUp = `
  create table account(id int primary key, balance int not null, filler char(84) default '');
  insert into account(id, balance) select i, 0 from generate_series(1, 50000) i;
  create procedure work(count int) language plpgsql as $$
  declare chosen int;
  begin
    for i in 1..count loop
      chosen := 1 + floor(random() * 50000);
      update account set balance = balance + 1 where id = chosen;
      if i % 3 = 0 then commit; end if;
    end loop;
  end $$`;

export const pointInTime: BenchCase = {
  name: 'point-in-time',
  about:
    'A branch at an instant with 100 MB of log to replay, against the time stock Postgres takes to replay as much of the same work after a crash, with the same memory.',
  async run(context) {
    const megabytes = context.quick ? 20 : 100;
    const rounds = context.quick ? 1 : 5;
    const plain = await openPlainPostgres();
    const fleet = await startFleetService(['--pool-size', '2', '--history-base-mb', '4096']);
    const theirs: number[] = [];
    const ours: number[] = [];
    try {
      for (let round = 0; round < rounds; round++) {
        context.progress(`round ${round}: stock Postgres`);
        theirs.push(await replayAfterCrash(await plain.prepare(), megabytes));
        context.progress(`round ${round}: Coppice`);
        ours.push(await branchAtInstant(fleet, `round ${round}`, megabytes));
      }
    } finally {
      await fleet.stop();
      await plain.close();
    }
    const [stock, branch] = [summarize(theirs), summarize(ours)];
    return [
      { what: `Postgres replays ${megabytes} MB`, ...stock },
      {
        what: `Coppice, branch at an instant after ${megabytes} MB`,
        ...branch,
        target: { of: 'p50 / theirs', value: branch.p50 / stock.p50, atMost: 1.3 },
      },
    ];
  },
};

async function replayAfterCrash(prepared: PreparedPostgres, megabytes: number): Promise<number> {
  const settings = {
    shared_buffers: '16MB',
    max_wal_size: '4GB',
    checkpoint_timeout: '1h',
    autovacuum: 'off',
    // The work of a crash that is not replay: as the service does it.
    recovery_init_sync_method: 'syncfs',
  };
  const server = await prepared.start(settings);
  const { socketDirectory } = server;
  const client = new pg.Client({ host: socketDirectory, user: 'postgres', database: 'postgres' });
  client.on('error', () => {});
  await client.connect();
  await client.query(setUp);
  await write(client, megabytes);
  const gone = new Promise<void>((done) => client.once('end', () => done()));
  process.kill(server.pid, 'SIGKILL');
  await gone;
  for (;;) {
    let again: PlainPostgres | undefined;
    try {
      const durationMs = await timed(async () => {
        again = await prepared.start(settings);
      });
      await again?.stop();
      return durationMs;
    } catch {
      // Processes of the killed server are still on their way out.
    }
  }
}

async function branchAtInstant(
  fleet: FleetService,
  name: string,
  megabytes: number,
): Promise<number> {
  const parent = await fleet.create(name);
  const client = await fleet.connect(parent);
  await client.query(setUp);
  await write(client, megabytes);
  const body = { name: `${name} then`, snapshot_at: new Date().toISOString() };
  let id = '';
  const durationMs = await timed(async () => {
    const answer = await fleet.account.post(`/customer/databases/${parent.id}/branch`, body);
    if (answer.status !== 201) throw new Error(answer.text);
    id = answer.body.id;
  });
  await client.end();
  for (const each of [id, parent.id]) await fleet.account.delete(`/customer/databases/${each}`);
  return durationMs;
}

/** Until that much has been added to the log. */
async function write(client: pg.Client, megabytes: number): Promise<void> {
  const written = async () =>
    Number((await client.query(`select pg_current_wal_lsn() - '0/0' as bytes`)).rows[0].bytes);
  const end = (await written()) + megabytes * 1e6;
  await client.query('set synchronous_commit = off');
  while ((await written()) < end) await client.query('call work(5000)');
  // What is not on disk yet goes with the next commit that waits.
  await client.query('set synchronous_commit = on');
  await client.query('create table if not exists done(i int)');
}
