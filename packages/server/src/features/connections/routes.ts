import { operations } from '@coppice/contract';
import { type Route, route } from '../../kernel/route.ts';
import type { ConnectionsService } from './service.ts';

export const connectionRoutes = (service: ConnectionsService): Route[] => [
  route(operations.connect.token, ({ database, body }) =>
    service.mintToken(database.id, body.role ?? 'admin'),
  ),
  route(operations.connect.fsConnect, ({ database }) => service.filesAccess(database)),
];
