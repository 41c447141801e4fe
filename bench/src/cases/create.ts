import pg from 'pg';
import { startFleetService, untilMetric } from '../fleet-service.ts';
import { alternate, type BenchCase, type Row, summarize, timed } from '../harness.ts';
import { openPlainPostgres } from '../plain-postgres.ts';

export const create: BenchCase = {
  name: 'create',
  about:
    'Making a database over HTTP against `CREATE DATABASE` on one running stock Postgres of the same binaries, over its socket; then 200 by 8 clients at once; then from the request to the first row over a connection through the gateway.',
  async run(context) {
    const plain = await openPlainPostgres();
    const server = await plain.start();
    const peer = new pg.Client({
      host: server.socketDirectory,
      user: 'postgres',
      database: 'postgres',
    });
    const fleet = await startFleetService();
    const rows: Row[] = [];
    try {
      await peer.connect();
      await untilMetric(fleet, 'databases_pooled', (n) => n === 24);
      const rounds = context.quick ? 5 : 60;
      const result = await alternate(
        {
          theirs: (round) => peer.query(`create database "d${round}"`),
          ours: (round) => fleet.create(`sequential-${round}`),
        },
        { rounds, warmup: 2, context },
      );
      rows.push(
        { what: '`CREATE DATABASE`, one after the other', ...result.theirs },
        {
          what: 'Coppice, one after the other',
          ...result.ours,
          target: { of: 'p50 / theirs', value: result.ours.p50 / result.theirs.p50, atMost: 0.25 },
        },
        {
          what: '',
          target: { of: 'p99 / theirs', value: result.ours.p99 / result.theirs.p99, atMost: 1 },
        },
      );

      const many = context.quick ? 16 : 200;
      const durations: number[] = [];
      let failures = 0;
      let next = 0;
      context.progress(`${many} by 8 clients`);
      const totalMs = await timed(() =>
        Promise.all(
          Array.from({ length: 8 }, async () => {
            for (let n = next++; n < many; n = next++)
              await timed(() => fleet.create(`burst-${n}`)).then(
                (ms) => durations.push(ms),
                () => failures++,
              );
          }),
        ),
      );
      rows.push({
        what: `Coppice, ${many} by 8 clients`,
        ...summarize(durations),
        perSecond: (many / totalMs) * 1000,
        target: { of: 'failures', value: failures, atMost: 0 },
      });

      await untilMetric(fleet, 'databases_pooled', (n) => n === 24);
      const firstRows: number[] = [];
      for (let round = 0; round < (context.quick ? 3 : 30); round++) {
        context.progress(`first row ${round}`);
        firstRows.push(
          await timed(async () => {
            const client = await fleet.connect(await fleet.create(`first-row-${round}`));
            await client.query('select 1');
            await client.end();
          }),
        );
      }
      const firstRow = summarize(firstRows);
      rows.push({
        what: 'Coppice, create to first row',
        ...firstRow,
        target: { of: 'p50 ms', value: firstRow.p50, atMost: 150 },
      });
      return rows;
    } finally {
      await peer.end().catch(() => {});
      await server.stop();
      await Promise.all([fleet.stop(), plain.close()]);
    }
  },
};
