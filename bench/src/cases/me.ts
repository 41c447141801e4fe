import { startService } from '../../../test/support/service.ts';
import { type BenchCase, throughput } from '../harness.ts';
import { createHttpClient } from '../http-client.ts';
import { startPeer } from '../peer.ts';

export const me: BenchCase = {
  name: 'me',
  about:
    '`GET /customer/me` with an API token against a bare Fastify route that answers the same JSON, 16 clients.',
  async run(context) {
    const service = await startService({
      flags: ['--requests-per-second', '1000000', '--request-burst', '1000000'],
    });
    const account = await service.api.register();
    const { token } = (await account.post('/customer/tokens', {})).body;
    const peer = await startPeer('bare-fastify', [(await account.get('/customer/me')).text]);
    const ours = createHttpClient(service.baseUrl, { token, connections: 16 });
    const theirs = createHttpClient(peer.url, { connections: 16 });
    try {
      const result = await throughput(
        {
          ours: () => ours.request('GET', '/customer/me'),
          theirs: () => theirs.request('GET', '/'),
        },
        { clients: 16, context },
      );
      return [
        { what: 'bare Fastify', ...result.theirs.timing, perSecond: result.theirs.perSecond },
        {
          what: 'Coppice',
          ...result.ours.timing,
          perSecond: result.ours.perSecond,
          target: {
            of: 'share of bare Fastify',
            value: result.ours.perSecond / result.theirs.perSecond,
            atLeast: 0.5,
          },
        },
      ];
    } finally {
      await Promise.all([ours.close(), theirs.close()]);
      await Promise.all([service.stop(), peer.stop()]);
    }
  },
};
