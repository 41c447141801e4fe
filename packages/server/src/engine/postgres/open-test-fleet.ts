// For tests: the real fleet on a temporary data directory, without history, service or control
// database.
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { newId } from '../../kernel/ids.ts';
import { createLogger } from '../../kernel/logger.ts';
import { createVerifier } from '../../kernel/scram.ts';
import type { FleetHooks } from './fleet.ts';
import { type FleetOptions, openFleet, type PostgresFleet } from './postgres-fleet.ts';
import { openPostgresHost, type PostgresHost } from './postgres-host.ts';

const root = resolve(fileURLToPath(import.meta.url), '../../../../../..');

/** Made once for all tests: binaries, blank clusters, templates. */
export const testCacheDir = join(root, 'node_modules/.cache/coppice');
export const databaseSchemaDirectory = join(root, 'packages/server/schema/database');

export interface TestFleet {
  host: PostgresHost;
  fleet: PostgresFleet;
  dataDir: string;
  create(): Promise<string>;
  /** A session over the socket; it holds the database awake until it ends. */
  connect(id: string, role?: string, database?: string): Promise<pg.Client>;
  /** One statement in a session of its own. */
  query(id: string, sql: string, role?: string): Promise<Record<string, unknown>[]>;
  postmasterPid(id: string): Promise<number>;
  close(options?: { keepData?: boolean }): Promise<void>;
}

export interface TestFleetOptions extends Partial<FleetOptions> {
  dataDir?: string;
  cacheDir?: string;
  schemaDirectory?: string;
  postgresBin?: string;
  hooks?: FleetHooks;
}

export async function openTestFleet(options: TestFleetOptions = {}): Promise<TestFleet> {
  const dataDir = options.dataDir ?? (await mkdtemp(join(tmpdir(), 'coppice-fleet-')));
  if (options.postgresBin) await chmod(dataDir, 0o755);
  const logger = createLogger('silent');
  const host = await openPostgresHost({
    dataDir,
    // A system Postgres needs paths that its own uid can walk, and a clone may lie where it can't.
    cacheDir: options.cacheDir ?? (options.postgresBin ? dataDir : testCacheDir),
    postgresBin: options.postgresBin,
    logger,
  });
  const fleet = await openFleet({
    host,
    schemaDirectory: options.schemaDirectory ?? databaseSchemaDirectory,
    options: {
      idleSeconds: 300,
      maxRunning: 100,
      poolSize: 0,
      limits: { connections: 30, sharedBuffersMb: 16, temporaryFilesMb: 64, sessionMemoryMb: 256 },
      ...options,
    },
    hooks: options.hooks ?? {},
    logger,
  }).catch(async (error) => {
    await host.close();
    throw error;
  });
  const adminVerifier = await createVerifier('correct horse');

  async function connect(id: string, role = 'admin', database = 'postgres') {
    const lease = await fleet.wake(id);
    const { socketDirectory, port } = lease;
    const client = new pg.Client({ host: socketDirectory, port, user: role, database });
    client.on('error', () => {});
    client.on('end', () => lease.release());
    await client.connect();
    return client;
  }

  async function query(id: string, sql: string, role?: string) {
    const client = await connect(id, role);
    try {
      return (await client.query(sql)).rows as Record<string, unknown>[];
    } finally {
      await client.end();
    }
  }

  return {
    host,
    fleet,
    dataDir,
    connect,
    query,
    async create() {
      const id = newId('db');
      await fleet.create(id, adminVerifier);
      return id;
    },
    async postmasterPid(id) {
      const [row] = await query(
        id,
        `select split_part(pg_read_file('postmaster.pid'), e'\\n', 1)::int as pid`,
        'postgres',
      );
      return row!.pid as number;
    },
    async close({ keepData = false } = {}) {
      await fleet.close();
      await host.close();
      if (!keepData) await rm(dataDir, { recursive: true, force: true });
    },
  };
}
