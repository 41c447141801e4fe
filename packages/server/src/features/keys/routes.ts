import { operations } from '@coppice/contract';
import { type Route, route } from '../../kernel/route.ts';
import type { KeysService } from './service.ts';

const { connectKeys, publishableKeys, serviceKeys } = operations;

export const keyRoutes = (service: KeysService): Route[] => [
  route(connectKeys.create, async ({ database, body }) => {
    const { value, ...key } = await service.createConnectKey(database.id, body);
    return { ...key, connect_key: value };
  }),
  route(connectKeys.list, ({ database }) => service.listConnectKeys(database.id)),
  route(connectKeys.revoke, async ({ database, params }) => {
    await service.revokeConnectKey(database.id, params.key_id);
    return { message: `connect key ${params.key_id} has been revoked` };
  }),

  route(publishableKeys.create, async ({ database, body }) => {
    const { value, ...key } = await service.createPublishableKey(database.id, body);
    return { ...key, publishable_key: value };
  }),
  route(publishableKeys.list, ({ database }) => service.listPublishableKeys(database.id)),
  route(publishableKeys.revoke, async ({ database, params }) => {
    await service.revokePublishableKey(database.id, params.key_id);
    return { message: `publishable key ${params.key_id} has been revoked` };
  }),

  route(serviceKeys.create, async ({ database, body }) => {
    const { value, ...key } = await service.createServiceKey(database.id, body);
    return { ...key, service_key: value };
  }),
  route(serviceKeys.list, ({ database }) => service.listServiceKeys(database.id)),
  route(serviceKeys.revoke, async ({ database, params }) => {
    await service.revokeServiceKey(database.id, params.key_id);
    return { message: `service key ${params.key_id} has been revoked` };
  }),
];
