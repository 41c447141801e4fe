import { operations } from '@coppice/contract';
import type { DatabaseRecord } from '../../kernel/database-record.ts';
import type { Logger } from '../../kernel/logger.ts';
import { Answer, type Route, route } from '../../kernel/route.ts';
import type { createAdoption } from './adoption.ts';
import { createBatch, type DatabasesService, type MadeDatabase } from './service.ts';

export function databaseRoutes(
  service: DatabasesService,
  adoption: ReturnType<typeof createAdoption>,
  logger: Logger,
): Route[] {
  const { connectionStrings } = service;
  const adminString = (id: string) => connectionStrings.render(id, 'admin');
  const withCredentials = (made: MadeDatabase) => ({
    ...renderDatabase(made),
    connection_string: adminString(made.id),
    admin_user: 'admin',
    admin_password: made.adminPassword,
  });

  return [
    route(operations.databases.create, async ({ principal, body }) =>
      withCredentials(
        await service.create(principal, {
          name: body.name,
          region: body.region,
          adminPassword: body.admin_password,
          projectId: body.project_id,
        }),
      ),
    ),
    route(operations.databases.list, async ({ principal, query }) =>
      (await service.list(principal, query.project_id)).map(renderDatabase),
    ),
    route(operations.databases.get, ({ database }) => ({
      ...renderDatabase(database),
      connection_string: adminString(database.id),
    })),
    route(operations.databases.delete, async ({ database }) => {
      await service.delete(database);
      return { message: `database ${database.id} has been disabled` };
    }),
    route(operations.databases.credentials, async ({ database }) => ({
      admin_user: 'admin',
      admin_password: await service.adminPassword(database.id),
      connection_string: adminString(database.id),
    })),
    route(operations.databases.resetPassword, async ({ database }) => ({
      admin_user: 'admin',
      admin_password: await service.resetPassword(database.id),
      connection_string: adminString(database.id),
    })),
    route(operations.databases.batch, async ({ principal, body }) => {
      const specs = body.databases.map((item) => ({
        name: item.name,
        region: item.region,
        adminPassword: item.admin_password,
        projectId: body.project_id,
      }));
      const { created, failed } = await createBatch(service, principal, specs, logger);
      return new Answer(
        {
          created: created.map(withCredentials),
          failed,
          total_requested: specs.length,
          total_created: created.length,
        },
        created.length > 0 ? 201 : 200,
      );
    }),
    route(operations.accounts.adoptPreflight, ({ principal, body }) =>
      adoption.preflight(principal, body.anonymous_customer_id, body.anonymous_secret),
    ),
    route(operations.accounts.adopt, ({ principal, body }) =>
      adoption.adopt(principal, {
        anonymousId: body.anonymous_customer_id,
        secret: body.anonymous_secret,
        ids: body.database_ids,
        idempotencyKey: body.idempotency_key,
      }),
    ),
  ];
}

/** A database as every answer shows it. */
export function renderDatabase(record: DatabaseRecord) {
  return {
    id: record.id,
    name: record.name,
    region: record.region,
    state: 'ready',
    created_at: record.createdAt,
    ...(record.parentDatabaseId === null ? {} : { parent_database_id: record.parentDatabaseId }),
    ...(record.projectId === null ? {} : { project_id: record.projectId }),
  };
}
