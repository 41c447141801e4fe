import pg from 'pg';
import { startService } from '../../../test/support/service.ts';
import { alternate, type BenchCase, memoryMb, type Row, throughput } from '../harness.ts';
import { createHttpClient } from '../http-client.ts';
import { startPeer } from '../peer.ts';
import { recordingMicros, recordingRow } from '../recording-cost.ts';

const manyRows = `select n as id, 'customer ' || n as name, 'user' || n || '@example.com' as mail, n * 1.25 as balance,
    n % 2 = 0 as active, timestamptz '2026-01-01' + n * interval '1 minute' as created, md5(n::text) as token,
    n * 7 as score, n::float8 / 3 as ratio, 'a "quoted" note with some words in it' as note
  from generate_series(1, 100000) n`;

export const sql: BenchCase = {
  name: 'sql',
  about:
    '`POST /sql` on a warm database against the same Postgres through `pg`, a bare Fastify route with a warm `pg` pool ' +
    '(no authentication, no clean session) and Supabase’s postgres-meta.',
  async run(context) {
    const service = await startService({
      flags: ['--requests-per-second', '1000000', '--request-burst', '1000000'],
    });
    const account = await service.api.register();
    const { token } = (await account.post('/customer/tokens', {})).body;
    const { id } = await account.database();
    const socket: string = (
      await account.sql(id, "select current_setting('unix_socket_directories')")
    ).rows[0][0];
    const path = `/customer/databases/${id}/sql`;
    const bare = await startPeer('fastify-pg', [socket]);
    const meta = await startPeer('postgres-meta', [socket]);
    const direct = new pg.Client({ host: socket, port: 5432, user: 'admin', database: 'postgres' });
    await direct.connect();
    const ours = createHttpClient(service.baseUrl, { token, connections: 16 });
    const theirs = createHttpClient(bare.url, { connections: 16 });
    const metas = createHttpClient(meta.url, { connections: 16 });
    const rows: Row[] = [];
    try {
      context.progress('latency');
      const latency = await alternate(
        {
          ours: () => ours.request('POST', path, { query: 'SELECT 1' }),
          direct: () => direct.query('SELECT 1'),
        },
        { rounds: context.quick ? 200 : 2_000, context },
      );
      rows.push(
        { what: 'SELECT 1, `pg` on the socket', ...latency.direct },
        {
          what: 'SELECT 1, Coppice',
          ...latency.ours,
          target: {
            of: 'p50 above `pg`, ms',
            value: latency.ours.p50 - latency.direct.p50,
            atMost: 1,
          },
        },
      );

      context.progress('throughput');
      const calls = await throughput(
        {
          meta: () => metas.request('POST', '/query', { query: 'SELECT 1' }),
          bare: () => theirs.request('POST', '/', { query: 'SELECT 1' }),
          ours: () => ours.request('POST', path, { query: 'SELECT 1' }),
        },
        { clients: 16, context },
      );
      rows.push(
        {
          what: 'SELECT 1, 16 clients, postgres-meta',
          ...calls.meta.timing,
          perSecond: calls.meta.perSecond,
        },
        {
          what: 'SELECT 1, 16 clients, bare Fastify + pg',
          ...calls.bare.timing,
          perSecond: calls.bare.perSecond,
        },
        {
          what: 'SELECT 1, 16 clients, Coppice',
          ...calls.ours.timing,
          perSecond: calls.ours.perSecond,
          target: {
            of: 'share of bare Fastify + pg',
            value: calls.ours.perSecond / calls.bare.perSecond,
            atLeast: 0.8,
          },
        },
        {
          what: '… against postgres-meta',
          target: {
            of: 'times postgres-meta',
            value: calls.ours.perSecond / calls.meta.perSecond,
            atLeast: 10,
          },
        },
        recordingRow('… recording it for observability', recordingMicros(), calls.ours.perSecond),
      );

      context.progress('large results');
      const peaks = { ours: watchMemory(service.pid), bare: watchMemory(bare.pid) };
      const large = await alternate(
        {
          ours: () => ours.request('POST', path, { query: manyRows }),
          bare: () => theirs.request('POST', '/', { query: manyRows }),
        },
        { rounds: context.quick ? 4 : 20, warmup: 2, context },
      );
      const peak = { ours: peaks.ours.stop(), bare: peaks.bare.stop() };
      rows.push(
        { what: '100,000 rows of 10 columns, bare Fastify + pg', ...large.bare, memory: peak.bare },
        {
          what: '100,000 rows of 10 columns, Coppice',
          ...large.ours,
          memory: peak.ours,
          target: { of: 'times as fast', value: large.bare.p50 / large.ours.p50, atLeast: 2 },
        },
        {
          what: '… peak memory',
          target: { of: 'share of its peak', value: peak.ours / peak.bare, atMost: 0.5 },
        },
      );
      return rows;
    } finally {
      await direct.end();
      await Promise.all([ours.close(), theirs.close(), metas.close()]);
      await Promise.all([service.stop(), bare.stop(), meta.stop()]);
    }
  },
};

/** Looks at a process every 10 ms; `stop` answers the most it ever had, in MB. */
function watchMemory(pid: number): { stop(): number } {
  let peak = 0;
  const timer = setInterval(() => {
    peak = Math.max(peak, memoryMb(pid));
  }, 10);
  return {
    stop() {
      clearInterval(timer);
      return peak;
    },
  };
}
