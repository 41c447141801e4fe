// Database users: roles that may log in, managed over HTTP.
import type { Engine } from '../../engine/engine.ts';
import type { Sessions } from '../../engine/sessions.ts';
import type { Route } from '../../kernel/route.ts';
import { userRoutes } from './routes.ts';
import { createUsersService } from './service.ts';

export function createUsers(deps: {
  engine: Pick<Engine, 'wake'>;
  sessions: Sessions;
  connectionString(databaseId: string, role: string, password?: string): string;
}): { routes: Route[] } {
  return { routes: userRoutes(createUsersService(deps), deps.connectionString) };
}
