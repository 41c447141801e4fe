// The service's own sessions on a server, as its superuser. The database's owner may change what
// new sessions start with, but not for this role (schema/database/0001-roles.sql).
import pg from 'pg';
import { socketPort } from './postmaster.ts';

export async function connectSuperuser(socketDirectory: string): Promise<pg.Client> {
  const client = new pg.Client({
    host: socketDirectory,
    port: socketPort,
    user: 'postgres',
    database: 'postgres',
    application_name: 'coppice',
    connectionTimeoutMillis: 10_000,
  });
  // A lost connection shows in the query that needed it.
  client.on('error', () => {});
  await client.connect();
  return client;
}

export async function asSuperuser<T>(
  socketDirectory: string,
  work: (client: pg.Client) => Promise<T>,
): Promise<T> {
  const client = await connectSuperuser(socketDirectory);
  try {
    return await work(client);
  } finally {
    await client.end().catch(() => {});
  }
}
