import pg from 'pg';
import { startFleetService, untilMetric } from '../fleet-service.ts';
import { type BenchCase, summarize, timed } from '../harness.ts';
import { openPlainPostgres, type PlainPostgres, type PreparedPostgres } from '../plain-postgres.ts';

export const wake: BenchCase = {
  name: 'wake',
  about:
    'A sleeping database: from connecting through the gateway to the first row. Beside it what Postgres itself takes on the same machine at the same time: from starting a bare server to the first row over its socket.',
  async run(context) {
    const count = context.quick ? 4 : 40;
    const fleet = await startFleetService(['--idle-seconds', '1']);
    const plain = await openPlainPostgres();
    try {
      const databases = [];
      for (let n = 0; n < count; n++) databases.push(await fleet.create(`sleeper-${n}`));
      for (const database of databases) {
        const client = await fleet.connect(database);
        await client.query('create table t as select 1 as a');
        await client.end();
      }
      await untilMetric(fleet, 'databases_awake', (n) => n === 0);
      const prepared = await plain.prepare();
      await bareStart(prepared);
      const ours: number[] = [];
      const theirs: number[] = [];
      for (const [round, database] of databases.entries()) {
        context.progress(`${round}/${count}`);
        ours.push(
          await timed(async () => {
            const client = await fleet.connect(database);
            await client.query('select a from t');
            await client.end();
          }),
        );
        theirs.push(await bareStart(prepared));
      }
      const mine = summarize(ours);
      const bare = summarize(theirs);
      return [
        { what: 'Postgres alone: start to first row', ...bare },
        {
          what: 'Coppice: connect to first row',
          ...mine,
          target: { of: 'p50 ms', value: mine.p50, atMost: 100 },
          note: `${Math.round((bare.p50 / mine.p50) * 100)} % of it is Postgres's own start`,
        },
      ];
    } finally {
      await Promise.all([fleet.stop(), plain.close()]);
    }
  },
};

/** The same settings as the service's and a server that has run before, but nothing around it. */
async function bareStart(prepared: PreparedPostgres): Promise<number> {
  let server: PlainPostgres | undefined;
  const ms = await timed(async () => {
    server = await prepared.start(prepared.instanceSettings);
    const client = new pg.Client({
      host: server.socketDirectory,
      user: 'postgres',
      database: 'postgres',
    });
    await client.connect();
    await client.query('select 1');
    await client.end();
  });
  await server?.stop();
  return ms;
}
