// A Fastify route that answers the JSON given as argument, and nothing else.
import type { AddressInfo } from 'node:net';
import { fastify } from 'fastify';

const answer = JSON.parse(process.argv[2] ?? '{}');
const app = fastify();
app.get('/', () => answer);
await app.listen({ host: '127.0.0.1', port: 0 });
process.send?.({ url: `http://127.0.0.1:${(app.server.address() as AddressInfo).port}` });
