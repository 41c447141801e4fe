import { operations } from '@coppice/contract';
import { type Route, route } from '../../kernel/route.ts';
import type { MigrationsService } from './service.ts';

export function migrationRoutes(migrations: MigrationsService): Route[] {
  return [
    route(operations.migrations.list, ({ database, signal }) =>
      migrations.list(database.id, signal),
    ),
    route(operations.migrations.apply, async ({ database, body, signal }) => {
      await migrations.apply(database.id, body, signal);
      return { status: 'applied', name: body.name };
    }),
  ];
}
