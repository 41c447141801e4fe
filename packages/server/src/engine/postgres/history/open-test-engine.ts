// For tests: the real engine on a temporary data directory, without control database or service.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { type Clock, systemClock } from '../../../kernel/clock.ts';
import { newId } from '../../../kernel/ids.ts';
import { createLogger } from '../../../kernel/logger.ts';
import { createVerifier } from '../../../kernel/scram.ts';
import type { Fleet } from '../fleet.ts';
import { createPostgresEngine, type PostgresEngine } from '../index.ts';
import { openPostgresHost } from '../postgres-host.ts';
import { createHistory, type PostgresHistory } from './history.ts';
import type { HistoryPolicy } from './upkeep.ts';

const root = resolve(fileURLToPath(import.meta.url), '../../../../../../..');

export interface TestEngine {
  dataDir: string;
  engine: PostgresEngine;
  history: PostgresHistory;
  fleet: Fleet;
  adminVerifier: string;
  create(): Promise<string>;
  branch(parentId: string, atMicros?: bigint): Promise<string>;
  /** A session of the owner; ended with the engine if not before. */
  connect(id: string, role?: string): Promise<pg.Client>;
  /** One statement in a session of its own. */
  query(id: string, sql: string, role?: string): Promise<Record<string, unknown>[]>;
  close(options?: { keepData?: boolean }): Promise<void>;
}

export const testPolicy: HistoryPolicy = {
  retentionMs: 7 * 24 * 3_600_000,
  baseEveryBytes: 64 << 20,
  limitBytes: 4 * 1024 ** 3,
  checkEveryMs: 3_600_000,
  sweepEveryMs: 3_600_000,
};

export async function openTestEngine(
  options: { dataDir?: string; policy?: Partial<HistoryPolicy>; clock?: Clock } = {},
): Promise<TestEngine> {
  const dataDir = options.dataDir ?? (await mkdtemp(join(tmpdir(), 'coppice-history-')));
  const logger = createLogger(process.env.COPPICE_TEST_LOG ?? 'silent');
  const host = await openPostgresHost({
    dataDir,
    cacheDir: process.env.COPPICE_CACHE_DIR ?? join(root, 'node_modules/.cache/coppice'),
    logger,
  });
  let parts: { history: PostgresHistory; fleet: Fleet } | undefined;
  const engine = await createPostgresEngine({
    host,
    schemaDirectory: join(root, 'packages/server/schema/database'),
    options: {
      idleSeconds: 300,
      maxRunning: 100,
      poolSize: 0,
      limits: {
        connections: 50,
        sharedBuffersMb: 16,
        temporaryFilesMb: 1024,
        sessionMemoryMb: 1024,
      },
    },
    createHistory(fleet) {
      const policy = { ...testPolicy, ...options.policy };
      const major = host.binaries.major;
      parts = {
        fleet,
        history: createHistory({
          fleet,
          major,
          policy,
          clock: options.clock ?? systemClock,
          logger,
        }),
      };
      return parts.history;
    },
    logger,
  });
  const { history, fleet } = parts!;
  const adminVerifier = await createVerifier('password');
  const open = new Set<{ client: pg.Client; release: () => void }>();

  async function connect(id: string, role = 'admin'): Promise<pg.Client> {
    const lease = await engine.wake(id);
    const client = new pg.Client({
      host: lease.socketDirectory,
      port: lease.port,
      user: role,
      database: 'postgres',
    });
    client.on('error', () => {});
    const entry = { client, release: () => lease.release() };
    open.add(entry);
    client.on('end', () => {
      open.delete(entry);
      lease.release();
    });
    await client.connect();
    return client;
  }

  return {
    dataDir,
    engine,
    history,
    fleet,
    adminVerifier,
    connect,
    async create() {
      const id = newId('db');
      await engine.create(id, { adminVerifier });
      return id;
    },
    async branch(parentId, atMicros) {
      const id = newId('db');
      await engine.branch(parentId, id, { adminVerifier, atMicros });
      return id;
    },
    async query(id, sql, role) {
      const client = await connect(id, role);
      try {
        return (await client.query(sql)).rows as Record<string, unknown>[];
      } finally {
        await client.end();
      }
    },
    async close({ keepData = false } = {}) {
      for (const { client } of open) await client.end().catch(() => {});
      await engine.close();
      await host.close();
      if (!keepData) await rm(dataDir, { recursive: true, force: true });
    },
  };
}

export const nowMicros = async (client: pg.Client): Promise<bigint> => {
  const { rows } = await client.query<{ micros: string }>(
    'select (extract(epoch from clock_timestamp()) * 1000000)::bigint::text as micros',
  );
  return BigInt(rows[0]!.micros);
};
