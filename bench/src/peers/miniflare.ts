// The same trivial handler in miniflare (workerd).
import { Miniflare } from 'miniflare';

const miniflare = new Miniflare({
  modules: true,
  script:
    'export default { fetch: async (request) => Response.json({ echo: (await request.json()).input }) }',
  host: '127.0.0.1',
  port: 0,
});
const url = await miniflare.ready;
process.send?.({ url: url.origin });
process.on('SIGTERM', () => void miniflare.dispose().then(() => process.exit()));
