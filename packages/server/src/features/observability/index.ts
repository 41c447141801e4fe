// What a database is doing: measured on both ways in, over the last 60 s.
import { operations } from '@coppice/contract';
import type { Engine } from '../../engine/engine.ts';
import type { Sessions } from '../../engine/sessions.ts';
import { type Route, route } from '../../kernel/route.ts';
import { createNormalizer } from './normalizer.ts';
import { createRecorder, type Recorder } from './recorder.ts';
import { createObservabilityService } from './service.ts';

export type { Recorder } from './recorder.ts';

/** The engine for those whose use of a database is no query of its customer's: the files. */
export function noteActivity<E extends Engine>(engine: E, recorder: Recorder): E {
  return {
    ...engine,
    async wake(databaseId) {
      const lease = await engine.wake(databaseId);
      recorder.touch(databaseId);
      return {
        ...lease,
        release() {
          recorder.touch(databaseId);
          lease.release();
        },
      };
    },
  };
}

/** Made before everything that records. */
export function createQueryRecorder(): { recorder: Recorder; close(): void } {
  const normalizer = createNormalizer();
  const recorder = createRecorder(normalizer);
  return {
    recorder,
    close() {
      recorder.close();
      normalizer.close();
    },
  };
}

export function createObservability(deps: {
  engine: Pick<Engine, 'sizeBytes'>;
  sessions: Sessions;
  recorder: Recorder;
}): { routes: Route[] } {
  const service = createObservabilityService(deps);
  return {
    routes: [
      route(operations.observability.get, ({ database, signal }) =>
        service.observe(database.id, signal),
      ),
    ],
  };
}
