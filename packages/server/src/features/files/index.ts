// The files of databases: storage inside the database, operations, streams, watches.
import type { Engine } from '../../engine/engine.ts';
import { createSessions } from '../../engine/sessions.ts';
import type { Files } from '../../kernel/files.ts';
import type { Logger } from '../../kernel/logger.ts';
import { createReclaim } from './reclaim.ts';
import { createFilesService, type FilesLimits } from './service.ts';
import { createWatches } from './watches.ts';

export type { FilesLimits };

export interface FilesFeature {
  service: Files;
  close(): Promise<void>;
}

export function createFiles(deps: {
  engine: Engine;
  logger: Logger;
  limits: FilesLimits;
}): FilesFeature {
  // Sessions of its own: they only ever run the statements of store.ts, which leave nothing behind.
  const sessions = createSessions(deps.engine, { discard: false });
  const watches = createWatches(deps.engine, deps.logger);
  const reclaim = createReclaim(sessions, deps.logger);
  return {
    service: createFilesService({ ...deps, sessions, watches, reclaim }),
    async close() {
      reclaim.close();
      await watches.close();
      await sessions.close();
    },
  };
}
