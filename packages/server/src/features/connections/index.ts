// Logging in to databases: who may come in as which role, and the answers that tell a client how.

import type { Logins } from '../../kernel/login.ts';
import type { Route } from '../../kernel/route.ts';
import { createAccessSignals } from './access-signals.ts';
import { createFailedLogins } from './failed-logins.ts';
import { createLogins, type LoginsDeps } from './logins.ts';
import { createPasswordCheck } from './passwords.ts';
import { connectionRoutes } from './routes.ts';
import { type ConnectionsDeps, createConnectionsService } from './service.ts';

export { createRoleCheck } from './role-check.ts';

export function createConnections(
  deps: ConnectionsDeps &
    Pick<LoginsDeps, 'keys' | 'clock'> & {
      databases: LoginsDeps['databases'] & {
        /** Called with the id of a database whose deletion has begun. */
        onDelete(listener: (id: string) => void): void;
      };
      sessions: Parameters<typeof createPasswordCheck>[0]['sessions'];
      notifications: Parameters<typeof createAccessSignals>[0]['notifications'];
      /** Failed logins of one address to one database. */
      failureLimit: { burst: number; perSecond: number };
    },
): { routes: Route[]; logins: Logins; close(): void } {
  const signals = createAccessSignals(deps);
  const logins = createLogins({
    ...deps,
    signals,
    passwords: createPasswordCheck(deps),
    failures: createFailedLogins(deps.clock, deps.failureLimit),
  });
  return {
    routes: connectionRoutes(createConnectionsService(deps)),
    logins,
    close: () => signals.close(),
  };
}
