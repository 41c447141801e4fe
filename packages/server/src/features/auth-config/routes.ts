import { operations } from '@coppice/contract';
import { type Route, route } from '../../kernel/route.ts';
import type { AuthConfigService } from './service.ts';

export const authConfigRoutes = (service: AuthConfigService): Route[] => [
  route(operations.authConfig.get, ({ database }) => service.get(database.id)),
  route(operations.authConfig.put, ({ database, body }) => service.put(database.id, body)),
];
