// What anyone would write in ten minutes: a Fastify route, a warm `pg` pool on the instance's socket
// (given as argument), rows as arrays, JSON.stringify. No authentication, no clean session.
import type { AddressInfo } from 'node:net';
import { fastify } from 'fastify';
import pg from 'pg';

const pool = new pg.Pool({
  host: process.argv[2],
  port: 5432,
  user: 'admin',
  database: 'postgres',
  max: 8,
  idleTimeoutMillis: 0,
});
const app = fastify({ bodyLimit: 64 * 1024 * 1024 });
app.post<{ Body: { query: string } }>('/', async (request) => {
  const result = await pool.query({ text: request.body.query, rowMode: 'array' });
  return {
    columns: result.fields.map(({ name, dataTypeID }) => ({ name, data_type: dataTypeID })),
    rows: result.rows,
    row_count: result.rowCount,
    command: result.command,
  };
});
await app.listen({ host: '127.0.0.1', port: 0 });
process.send?.({ url: `http://127.0.0.1:${(app.server.address() as AddressInfo).port}` });
