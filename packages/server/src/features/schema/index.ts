// The tables and views of a database.

import { operations } from '@coppice/contract';
import type { Sessions } from '../../engine/sessions.ts';
import { JsonBytes, type Route, route } from '../../kernel/route.ts';
import { describeSchema } from './store.ts';

export function createSchema({ sessions }: { sessions: Sessions }): { routes: Route[] } {
  return {
    routes: [
      route(operations.schema.get, async ({ database, signal }) => {
        // As superuser: the description is complete whoever owns what.
        const json = await sessions.use(database.id, { role: 'postgres', signal }, describeSchema);
        return new JsonBytes(Buffer.from(json));
      }),
    ],
  };
}
