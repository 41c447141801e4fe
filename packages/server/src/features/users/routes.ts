import { operations } from '@coppice/contract';
import { type Route, route } from '../../kernel/route.ts';
import type { UsersService } from './service.ts';

export function userRoutes(
  users: UsersService,
  connectionString: (databaseId: string, role: string, password?: string) => string,
): Route[] {
  return [
    route(operations.users.list, ({ database, signal }) => users.list(database.id, signal)),
    route(operations.users.create, async ({ database, body }) => {
      const { username } = body;
      const password = await users.create(database.id, username, body.password);
      return {
        message: `user ${username} has been created`,
        username,
        password,
        connection_string: connectionString(database.id, username),
        connection_string_with_password: connectionString(database.id, username, password),
      };
    }),
    route(operations.users.delete, async ({ database, params }) => {
      await users.delete(database.id, params.username);
      return { message: `user ${params.username} has been deleted` };
    }),
  ];
}
