// Migrations: SQL applied once, recorded inside the database in one transaction with its effects.
import type { Sessions } from '../../engine/sessions.ts';
import type { Backends } from '../../engine/wire/backends.ts';
import type { Route } from '../../kernel/route.ts';
import { migrationRoutes } from './routes.ts';
import { createMigrationsService } from './service.ts';

export function createMigrations(deps: { sessions: Sessions; backends: Backends }): {
  routes: Route[];
} {
  return { routes: migrationRoutes(createMigrationsService(deps)) };
}
