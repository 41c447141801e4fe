// The keys of databases: connect keys (logging in as a role), publishable keys (browsers) and
// service keys. A value is shown once; what is stored is its SHA-256.
import type { Metastore } from '../../engine/metastore/metastore.ts';
import type { Clock } from '../../kernel/clock.ts';
import type { Route } from '../../kernel/route.ts';
import { keyRoutes } from './routes.ts';
import { createKeysService, type KeysService } from './service.ts';

export type { FoundConnectKey, FoundPublishableKey } from './store.ts';
export type { KeysService };

export function createKeys(deps: {
  metastore: Metastore;
  clock: Clock;
  /** Keys of each kind that a database may have. */
  limit: number;
  /** Throws a 422 unless clients may act as the role. */
  checkRole(databaseId: string, role: string): Promise<void>;
}): { routes: Route[]; service: KeysService } {
  const service = createKeysService(deps);
  return { routes: keyRoutes(service), service };
}
