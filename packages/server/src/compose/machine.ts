// The machinery under the features: Postgres itself, the control database, customers' databases and
// the service's own sessions on them.
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type pg from 'pg';
import type { Config } from '../config.ts';
import { openMetastore } from '../engine/metastore/metastore.ts';
import { startControlInstance } from '../engine/postgres/control-instance.ts';
import { createHistory, type PostgresHistory } from '../engine/postgres/history/history.ts';
import { createPostgresEngine } from '../engine/postgres/index.ts';
import { openPostgresHost } from '../engine/postgres/postgres-host.ts';
import { createSessions } from '../engine/sessions.ts';
import { createQueryRecorder } from '../features/observability/index.ts';
import { createSqlBackends } from '../features/sql/index.ts';
import type { Basics } from './basics.ts';

const schemaDirectory = resolve(fileURLToPath(import.meta.url), '../../../schema');

export type Machine = Awaited<ReturnType<typeof openMachine>>;

export async function openMachine(config: Config, { clock, logger, releasers, progress }: Basics) {
  const host = await openPostgresHost({
    dataDir: config.dataDir,
    cacheDir: config.cacheDir,
    postgresBin: config.postgresBin,
    uidBase: config.uidBase,
    logger,
  });
  releasers.push('data directory', () => host.close());
  const metastore = await openMetastore({
    connection: await controlConnection(),
    schemaDirectory: join(schemaDirectory, 'control'),
    logger,
  });
  releasers.push('control database connections', () => metastore.close());

  async function controlConnection(): Promise<pg.ClientConfig> {
    if (config.metadataUrl !== undefined) return { connectionString: config.metadataUrl };
    progress('Starting the control database');
    const control = await startControlInstance({ host, logger });
    releasers.push('control database', () => control.stop());
    return control.connection;
  }

  progress('Preparing databases');
  let history!: PostgresHistory;
  const engine = await createPostgresEngine({
    host,
    schemaDirectory: join(schemaDirectory, 'database'),
    options: {
      idleSeconds: config.idleSeconds,
      maxRunning: config.maxRunning,
      poolSize: config.poolSize,
      limits: {
        connections: config.instanceConnections,
        sharedBuffersMb: config.instanceSharedBuffersMb,
        temporaryFilesMb: config.instanceTemporaryFilesMb,
        sessionMemoryMb: config.instanceSessionMemoryMb,
      },
    },
    createHistory: (fleet) => {
      history = createHistory({
        fleet,
        major: host.binaries.major,
        policy: {
          retentionMs: config.historyDays * 24 * 3_600_000,
          baseEveryBytes: config.historyBaseMb * 1024 * 1024,
          limitBytes: config.historyLimitMb * 1024 * 1024,
          checkEveryMs: 5_000,
          sweepEveryMs: 3_600_000,
        },
        clock,
        logger,
      });
      return history;
    },
    logger,
  });
  releasers.push('databases', () => engine.close());
  const sessions = createSessions(engine);
  releasers.push('sessions', () => sessions.close());
  const sqlLimits = {
    statementTimeoutMs: config.sqlSeconds * 1000,
    resultBytes: config.sqlResultMb * 1024 * 1024,
  };
  const backends = createSqlBackends(engine, sqlLimits);
  releasers.push('SQL sessions', () => backends.close());
  const { recorder, close: closeRecorder } = createQueryRecorder();
  releasers.push('query recorder', closeRecorder);

  return { metastore, engine, history, sessions, backends, sqlLimits, recorder };
}
