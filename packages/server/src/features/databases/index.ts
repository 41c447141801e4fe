// Databases: made, listed, deleted, adopted. Branches and restores are made through `service.make`.
import type { Route } from '../../kernel/route.ts';
import { type AdoptionDeps, createAdoption } from './adoption.ts';
import { databaseRoutes } from './routes.ts';
import { createDatabasesService, type DatabasesDeps, type DatabasesService } from './service.ts';

export { type ConnectionStrings, createConnectionStrings } from './connection-strings.ts';
export { renderDatabase } from './routes.ts';
export type { DatabaseSpec, DatabasesService, MadeDatabase } from './service.ts';

export function createDatabases(deps: DatabasesDeps & Pick<AdoptionDeps, 'accounts'>): {
  routes: Route[];
  service: DatabasesService;
} {
  const service = createDatabasesService(deps);
  const adoption = createAdoption({
    metastore: deps.metastore,
    accounts: deps.accounts,
    databases: service,
  });
  return { service, routes: databaseRoutes(service, adoption, deps.logger) };
}
