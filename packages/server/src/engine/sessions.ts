// Sessions of the service itself on customers' databases: one small pool a (database, role),
// connected over the instance's socket without a password. A session is clean when it is handed
// out (`discard all` after each use, unless its users leave nothing behind) and holds its database
// awake only while it is in use.
import pg from 'pg';
import { quoteIdent } from '../kernel/sql-quote.ts';
import type { Engine, Lease } from './engine.ts';

export interface SessionOptions {
  /** The role to connect as; `postgres` is the supervisor's own, never a customer's. */
  role: string;
  signal?: AbortSignal;
}

export interface Sessions {
  use<T>(
    databaseId: string,
    options: SessionOptions,
    work: (client: pg.Client) => Promise<T>,
  ): Promise<T>;
  close(): Promise<void>;
}

const idleLimit = 4;

/** `discard: false` is for users that leave no state behind and want to keep prepared statements. */
export function createSessions(
  engine: Pick<Engine, 'wake' | 'onSleep'>,
  { discard = true }: { discard?: boolean } = {},
): Sessions {
  const idle = new Map<string, pg.Client[]>();
  const key = (databaseId: string, role: string) => `${databaseId}/${role}`;

  engine.onSleep((databaseId) => {
    for (const [name, clients] of idle)
      if (name.startsWith(`${databaseId}/`)) {
        idle.delete(name);
        for (const client of clients) void client.end().catch(() => {});
      }
  });

  async function connect(lease: Lease, role: string): Promise<pg.Client> {
    const client = new pg.Client({
      host: lease.socketDirectory,
      port: lease.port,
      user: role,
      database: 'postgres',
      connectionTimeoutMillis: 10_000,
    });
    client.on('error', () => {});
    await client.connect();
    // A session that ended while it was idle (its server crashed, say) is not handed out again.
    client.on('end', () => {
      for (const clients of idle.values())
        if (clients.includes(client)) clients.splice(clients.indexOf(client), 1);
    });
    return client;
  }

  async function giveBack(name: string, client: pg.Client): Promise<void> {
    try {
      if (discard) await client.query('discard all');
      const clients = idle.get(name) ?? [];
      if (clients.length >= idleLimit) return void client.end().catch(() => {});
      clients.push(client);
      idle.set(name, clients);
    } catch {
      client.end().catch(() => {});
    }
  }

  return {
    async use(databaseId, { role, signal }, work) {
      signal?.throwIfAborted();
      const lease = await engine.wake(databaseId);
      const name = key(databaseId, role);
      try {
        const client = idle.get(name)?.pop() ?? (await connect(lease, role));
        let healthy = true;
        try {
          return await work(client);
        } catch (error) {
          healthy = error instanceof pg.DatabaseError && error.severity === 'ERROR';
          throw error;
        } finally {
          if (healthy) await giveBack(name, client);
          else client.end().catch(() => {});
        }
      } finally {
        lease.release();
      }
    },

    async close() {
      const clients = [...idle.values()].flat();
      idle.clear();
      await Promise.allSettled(clients.map((client) => client.end()));
    },
  };
}

/** `set local role` with the name quoted, for sessions that act for another role. */
export const setLocalRole = (role: string) => `set local role ${quoteIdent(role)}`;
