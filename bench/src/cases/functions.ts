import { execFileSync } from 'node:child_process';
import { startService } from '../../../test/support/service.ts';
import {
  alternate,
  type BenchCase,
  memoryMb,
  type Row,
  summarize,
  throughput,
  timed,
} from '../harness.ts';
import { createHttpClient } from '../http-client.ts';
import { startPeer } from '../peer.ts';

const handler = (tag: string) =>
  `data:text/javascript,${encodeURIComponent(`export const handler = (input) => ({ echo: input }); // ${tag}`)}`;

export const functions: BenchCase = {
  name: 'functions',
  about:
    'A trivial handler: warm against `GET /customer/me`, cold right after its deployment with spare sandboxes booted, ' +
    '16 clients against the same handler in `deno serve` and miniflare (neither keeps records, authenticates or isolates tenants).',
  async run(context) {
    const service = await startService({
      flags: [
        '--function-spares',
        '3',
        ...['--requests-per-second', '1000000', '--request-burst', '1000000'],
        ...['--invocations-per-second', '1000000', '--invocation-burst', '1000000'],
        ...['--function-concurrency', '4', '--function-sandboxes', '64'],
      ],
    });
    const account = await service.api.register();
    const { token } = (await account.post('/customer/tokens', {})).body;
    const { id: databaseId } = await account.database();
    const functionsPath = `/customer/databases/${databaseId}/functions`;
    const deno = await startPeer('deno-serve');
    const miniflare = await startPeer('miniflare');
    const ours = createHttpClient(service.baseUrl, { token, connections: 16 });
    const denos = createHttpClient(deno.url, { connections: 16 });
    const minis = createHttpClient(miniflare.url, { connections: 16 });
    const rows: Row[] = [];

    /** Gives the path that invokes it. */
    async function deploy(name: string): Promise<string> {
      const body = { name, entrypoint: 'index.handler', bundle_ref: handler(name) };
      const { text } = await ours.request('POST', functionsPath, body);
      return `${functionsPath}/${JSON.parse(text).function.id}/invoke`;
    }
    const sparesReady = async () => {
      const booted = async () =>
        Number(
          /function_sandboxes_spare (\d+)/.exec((await ours.request('GET', '/metrics')).text)?.[1],
        );
      for (const until = Date.now() + 5_000; Date.now() < until; )
        if ((await booted()) >= 3) break;
        else await new Promise((resolve) => setTimeout(resolve, 50));
      // A spare counts from its start; give the last one the time to boot.
      await new Promise((resolve) => setTimeout(resolve, 300));
    };

    try {
      const warm = await deploy('warm');
      const input = { input: { n: 1 } };
      const latency = await alternate(
        {
          me: () => ours.request('GET', '/customer/me'),
          invoke: () => ours.request('POST', warm, input),
        },
        { rounds: context.quick ? 100 : 1_500, warmup: 100, context },
      );
      rows.push(
        { what: '`GET /customer/me`', ...latency.me },
        {
          what: 'warm invocation',
          ...latency.invoke,
          target: {
            of: 'p50 above `GET /me`, ms',
            value: latency.invoke.p50 - latency.me.p50,
            atMost: 2,
          },
        },
      );

      const cold: number[] = [];
      for (let n = 0; n < (context.quick ? 5 : 40); n++) {
        const path = await deploy(`cold-${n}`);
        await sparesReady();
        cold.push(await timed(() => ours.request('POST', path, input)));
        context.progress(`cold ${n + 1}`);
      }
      const coldTiming = summarize(cold);
      rows.push({
        what: 'first invocation after deployment',
        ...coldTiming,
        target: { of: 'p50, ms', value: coldTiming.p50, atMost: 60 },
      });

      const calls = await throughput(
        {
          deno: () => denos.request('POST', '/', input),
          miniflare: () => minis.request('POST', '/', input),
          ours: () => ours.request('POST', warm, input),
        },
        { clients: 16, context },
      );
      for (const [name, subject] of [
        ['`deno serve`', calls.deno],
        ['miniflare', calls.miniflare],
        ['Coppice', calls.ours],
      ] as const)
        rows.push({
          what: `16 clients, ${name}`,
          ...subject.timing,
          perSecond: subject.perSecond,
          ...(name === 'Coppice'
            ? {
                note: `${(subject.perSecond / calls.deno.perSecond).toFixed(2)} of deno serve, ${(subject.perSecond / calls.miniflare.perSecond).toFixed(2)} of miniflare`,
              }
            : {}),
        });

      const idle = sandboxPids(service.pid).map(memoryMb);
      rows.push({
        what: `an idle sandbox (mean of ${idle.length})`,
        memory: idle.reduce((sum, mb) => sum + mb, 0) / idle.length,
      });
      return rows;
    } finally {
      await Promise.all([ours.close(), denos.close(), minis.close()]);
      await Promise.all([service.stop(), deno.stop(), miniflare.stop()]);
    }
  },
};

/** The Deno processes inside the jails of the service. */
function sandboxPids(servicePid: number): number[] {
  const children = (pid: number | string) =>
    execFileSync('sh', ['-c', `pgrep -P ${pid} || true`])
      .toString()
      .split('\n')
      .filter(Boolean);
  const jails = execFileSync('sh', ['-c', `pgrep -P ${servicePid} -x bwrap || true`])
    .toString()
    .split('\n')
    .filter(Boolean);
  return jails.flatMap(children).map(Number);
}
