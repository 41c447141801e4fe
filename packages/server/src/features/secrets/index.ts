// Secrets of a database, for its functions. Values are sealed with the database and the name as
// their context and never leave the service but into a function that binds them.
import type { Metastore } from '../../engine/metastore/metastore.ts';
import type { Route } from '../../kernel/route.ts';
import type { Secretbox } from '../../kernel/secretbox.ts';
import { secretRoutes } from './routes.ts';
import { createSecretsService, type SecretsService } from './service.ts';

export type { SecretsService };

export function createSecrets(deps: { metastore: Metastore; secretbox: Secretbox }): {
  routes: Route[];
  service: SecretsService;
} {
  const service = createSecretsService(deps);
  return { routes: secretRoutes(service), service };
}
