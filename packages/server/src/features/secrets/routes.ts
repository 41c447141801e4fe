import { operations } from '@coppice/contract';
import { type Route, route } from '../../kernel/route.ts';
import { Secret } from '../../kernel/secret.ts';
import type { SecretsService } from './service.ts';

export const secretRoutes = (service: SecretsService): Route[] => [
  route(operations.secrets.list, ({ database }) => service.list(database.id)),
  route(operations.secrets.create, ({ database, body }) =>
    service.create(database.id, body.name, new Secret(body.value)),
  ),
  route(operations.secrets.update, ({ database, params, body }) =>
    service.update(database.id, params.secret_name, new Secret(body.value)),
  ),
  route(operations.secrets.delete, ({ database, params }) =>
    service.delete(database.id, params.secret_name),
  ),
];
