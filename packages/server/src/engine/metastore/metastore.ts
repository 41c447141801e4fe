// The control database: where everything durable about accounts, databases, keys and jobs is.
// Several processes may share it. Stores get a `Queryable`; services own transactions.
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import type { Logger } from '../../kernel/logger.ts';
import { createNotifications, type Notifications } from './notifications.ts';

export interface Queryable {
  query<R extends pg.QueryResultRow = pg.QueryResultRow>(
    text: string,
    values?: unknown[],
  ): Promise<pg.QueryResult<R>>;
}

export interface Metastore extends Queryable {
  transaction<T>(work: (tx: Queryable) => Promise<T>): Promise<T>;
  notifications: Notifications;
  /** For libraries that bring their own queries (the job queue). */
  pool: pg.Pool;
  close(): Promise<void>;
}

export interface MetastoreOptions {
  connection: pg.ClientConfig;
  schemaDirectory: string;
  logger: Logger;
  poolSize?: number;
}

export async function openMetastore(options: MetastoreOptions): Promise<Metastore> {
  const { connection, schemaDirectory, logger } = options;
  const pool = new pg.Pool({
    ...connection,
    max: options.poolSize ?? 10,
    connectionTimeoutMillis: 10_000,
  });
  pool.on('error', (error) =>
    logger.warn({ reason: error.message }, 'control database connection lost'),
  );
  try {
    await applySchema(pool, schemaDirectory, logger);
  } catch (error) {
    await pool.end();
    throw error;
  }
  const notifications = createNotifications({ connection, logger });
  await notifications.start();

  return {
    pool,
    notifications,
    query: (text, values) => pool.query(text, values),
    async transaction(work) {
      const client = await pool.connect();
      let broken: unknown;
      try {
        await client.query('begin');
        const result = await work(client);
        await client.query('commit');
        return result;
      } catch (error) {
        await client.query('rollback').catch((failure) => {
          broken = failure;
        });
        throw error;
      } finally {
        client.release(broken ? true : undefined);
      }
    },
    async close() {
      await notifications.stop();
      await pool.end();
    },
  };
}

/** Applies the numbered steps that are not there yet; processes that start together take turns. */
async function applySchema(pool: pg.Pool, directory: string, logger: Logger): Promise<void> {
  const steps = (await readdir(directory)).filter((name) => /^\d{4}-.*\.sql$/.test(name)).sort();
  const client = await pool.connect();
  try {
    await client.query('select pg_advisory_lock(7305261)');
    await client.query(
      `create table if not exists schema_steps
         (name text primary key, applied_at timestamptz not null default now())`,
    );
    const { rows } = await client.query<{ name: string }>('select name from schema_steps');
    const applied = new Set(rows.map((row) => row.name));
    for (const step of steps) {
      if (applied.has(step)) continue;
      const sql = await readFile(join(directory, step), 'utf8');
      await client.query('begin');
      await client.query(sql);
      await client.query('insert into schema_steps (name) values ($1)', [step]);
      await client.query('commit');
      logger.debug({ step }, 'applied schema step');
    }
  } finally {
    // Closing the connection also releases the lock and an aborted transaction.
    client.release(true);
  }
}
