// SQL over HTTP: running it, and exporting a database as SQL.
import type { Engine } from '../../engine/engine.ts';
import type { Sessions } from '../../engine/sessions.ts';
import { type Backends, createBackends } from '../../engine/wire/backends.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { QueryRecorder } from '../../kernel/query-recorder.ts';
import type { Route } from '../../kernel/route.ts';
import { createDumpService, type DumpLimits } from './dump-service.ts';
import { sqlRoutes } from './routes.ts';
import { createSqlService, type SqlLimits } from './service.ts';

/** Fewer than half of an instance's connections: the rest is for clients of the gateway. */
const sessionsPerDatabase = 8;
const queueTimeoutMs = 60_000;
const dumpDefaults: DumpLimits = {
  timeoutMs: 120_000,
  // As much JSON as `/sql` takes back in one body.
  bytes: 63 * 1024 * 1024,
  concurrency: 2,
  waiting: 32,
};

/** The sessions that `/sql` and migrations share. */
export function createSqlBackends(
  engine: Pick<Engine, 'wake' | 'onSleep'>,
  limits: SqlLimits,
): Backends {
  return createBackends(engine, {
    limitPerDatabase: sessionsPerDatabase,
    queueTimeoutMs,
    statementTimeoutMs: limits.statementTimeoutMs,
    // One value may be as long as the result, and no message is longer than a row.
    messageLimitBytes: limits.resultBytes + 64 * 1024,
  });
}

export function createSql(deps: {
  engine: Engine;
  backends: Backends;
  sessions: Sessions;
  recorder: QueryRecorder;
  logger: Logger;
  limits: SqlLimits;
  dumpLimits?: Partial<DumpLimits>;
}): { routes: Route[] } {
  const sql = createSqlService(deps);
  const dumps = createDumpService({ ...deps, limits: { ...dumpDefaults, ...deps.dumpLimits } });
  return { routes: sqlRoutes(sql, dumps) };
}
