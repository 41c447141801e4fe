// The files of databases: storage inside the database, operations, streams, watches.
import type { Engine } from '../../engine/engine.ts';
import { createSessions } from '../../engine/sessions.ts';
import type { Files } from '../../kernel/files.ts';
import type { Logger } from '../../kernel/logger.ts';
import { createReclaim } from './reclaim.ts';
import { createFilesService } from './service.ts';
import { createWatches } from './watches.ts';

export interface FilesLimits {
  /** Total size of a database's files. */
  quotaBytes: number;
  /** Operations and streams that may run at once on a database: each is a connection. */
  operationsAtOnce: number;
  streamsAtOnce: number;
}

export interface FilesFeature {
  service: Files;
  close(): Promise<void>;
}

export function createFiles(deps: {
  engine: Pick<Engine, 'wake' | 'onSleep' | 'onWake'>;
  logger: Logger;
  limits: FilesLimits;
}): FilesFeature {
  // Sessions of its own: they only ever run the statements of store.ts, which leave nothing behind.
  const { engine, limits } = deps;
  const sessions = createSessions(engine, { discard: false, limit: limits.operationsAtOnce });
  const streamSessions = createSessions(engine, { discard: false, limit: limits.streamsAtOnce });
  const watches = createWatches(engine, deps.logger);
  const reclaim = createReclaim(sessions, deps.logger);
  return {
    service: createFilesService({ ...deps, sessions, streamSessions, watches, reclaim }),
    async close() {
      reclaim.close();
      await watches.close();
      await sessions.close();
      await streamSessions.close();
    },
  };
}
