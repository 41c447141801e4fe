import { Type } from 'typebox';
import { operation } from './operation.ts';
import {
  DatabaseParams,
  ExpiresInDays,
  Input,
  Message,
  Nullable,
  Text,
  Timestamp,
  withDatabase,
} from './schemas.ts';

const Name = Text('a label', { maxLength: 255 });
const KeyParams = withDatabase({ key_id: Text('the key') });
const Strings = (description: string) =>
  Type.Array(Type.String({ maxLength: 1024 }), { description, maxItems: 1000 });

const ConnectKey = Type.Object({
  id: Type.String(),
  name: Type.String(),
  role: Type.String(),
  scopes: Type.Array(Type.String()),
  created_at: Timestamp,
  expires_at: Nullable(Timestamp),
});

export const connect = {
  token: operation({
    id: 'connect.token',
    method: 'POST',
    path: '/customer/databases/{database_id}/connect-token',
    access: 'connect',
    summary: 'Mint a short-lived token to connect with',
    params: DatabaseParams,
    body: Input({
      role: Type.Optional(Text('database role, default `admin`', { minLength: 1, maxLength: 63 })),
    }),
    responses: {
      201: Type.Object({
        host: Type.String(),
        port: Type.Integer(),
        database: Type.String(),
        user: Type.String(),
        token: Type.String(),
        fs_websocket_url: Type.String(),
        expires_in_seconds: Type.Integer(),
        expires_at: Timestamp,
        tls: Type.String(),
      }),
    },
    errors: [422],
  }),
  fsConnect: operation({
    id: 'connect.fsConnect',
    method: 'POST',
    path: '/customer/databases/{database_id}/fs-connect',
    access: 'write',
    summary: 'Everything a client needs to use the files of the database',
    params: DatabaseParams,
    responses: {
      200: Type.Object({
        database_id: Type.String(),
        database_name: Type.String(),
        admin_user: Type.String(),
        admin_password: Type.String(),
        connection_string: Type.String(),
        fs_websocket_url: Type.String(),
        connection_string_with_password: Type.String(),
      }),
    },
  }),
};

export const connectKeys = {
  create: operation({
    id: 'connectKeys.create',
    method: 'POST',
    path: '/customer/databases/{database_id}/connect-keys',
    access: 'write',
    summary: 'Create a long-lived key to connect with',
    params: DatabaseParams,
    body: Input({
      role: Type.Optional(Text('database role, default `admin`', { minLength: 1, maxLength: 63 })),
      scopes: Type.Optional(Strings('`db:connect`, `fs:read`, `fs:write`; empty: all three')),
      name: Type.Optional(Name),
      expires_in_days: Type.Optional(ExpiresInDays),
    }),
    responses: { 201: Type.Object({ ...ConnectKey.properties, connect_key: Type.String() }) },
    errors: [422],
  }),
  list: operation({
    id: 'connectKeys.list',
    method: 'GET',
    path: '/customer/databases/{database_id}/connect-keys',
    access: 'read',
    summary: 'The connect keys, without their values',
    params: DatabaseParams,
    responses: { 200: Type.Array(ConnectKey) },
  }),
  revoke: operation({
    id: 'connectKeys.revoke',
    method: 'DELETE',
    path: '/customer/databases/{database_id}/connect-keys/{key_id}',
    access: 'write',
    summary: 'Revoke a connect key and end the connections it opened',
    params: KeyParams,
    responses: { 200: Message },
  }),
};

const PublishableKey = Type.Object({
  id: Type.String(),
  name: Type.String(),
  allowed_origins: Type.Array(Type.String()),
  exposed_schemas: Type.Array(Type.String()),
  exposed_tables: Type.Array(Type.String()),
  rate_limit: Nullable(Type.Object({ rps: Type.Number(), burst: Type.Number() })),
  created_at: Timestamp,
  expires_at: Nullable(Timestamp),
});

export const publishableKeys = {
  create: operation({
    id: 'publishableKeys.create',
    method: 'POST',
    path: '/customer/databases/{database_id}/publishable-keys',
    access: 'write',
    summary: 'Create a key that a browser may hold',
    params: DatabaseParams,
    body: Input({
      name: Type.Optional(Name),
      allowed_origins: Type.Optional(Strings('CORS origins')),
      exposed_schemas: Type.Optional(Strings('schemas the data plane shows')),
      exposed_tables: Type.Optional(Strings('tables the data plane shows')),
      rate_limit: Type.Optional(
        Input({
          rps: Type.Optional(Type.Number({ exclusiveMinimum: 0 })),
          burst: Type.Optional(Type.Number({ minimum: 1 })),
        }),
      ),
      expires_in_days: Type.Optional(ExpiresInDays),
    }),
    responses: {
      201: Type.Object({ ...PublishableKey.properties, publishable_key: Type.String() }),
    },
    errors: [422],
  }),
  list: operation({
    id: 'publishableKeys.list',
    method: 'GET',
    path: '/customer/databases/{database_id}/publishable-keys',
    access: 'read',
    summary: 'The publishable keys, without their values',
    params: DatabaseParams,
    responses: { 200: Type.Array(PublishableKey) },
  }),
  revoke: operation({
    id: 'publishableKeys.revoke',
    method: 'DELETE',
    path: '/customer/databases/{database_id}/publishable-keys/{key_id}',
    access: 'write',
    summary: 'Revoke a publishable key at once',
    params: KeyParams,
    responses: { 200: Message },
  }),
};

const ServiceKey = Type.Object({
  id: Type.String(),
  name: Type.String(),
  created_at: Timestamp,
  expires_at: Nullable(Timestamp),
});

export const serviceKeys = {
  create: operation({
    id: 'serviceKeys.create',
    method: 'POST',
    path: '/customer/databases/{database_id}/service-keys',
    access: 'write',
    summary: 'Create a service key',
    params: DatabaseParams,
    body: Input({ name: Type.Optional(Name), expires_in_days: Type.Optional(ExpiresInDays) }),
    responses: { 201: Type.Object({ ...ServiceKey.properties, service_key: Type.String() }) },
    errors: [422],
  }),
  list: operation({
    id: 'serviceKeys.list',
    method: 'GET',
    path: '/customer/databases/{database_id}/service-keys',
    access: 'read',
    summary: 'The service keys, without their values',
    params: DatabaseParams,
    responses: { 200: Type.Array(ServiceKey) },
  }),
  revoke: operation({
    id: 'serviceKeys.revoke',
    method: 'DELETE',
    path: '/customer/databases/{database_id}/service-keys/{key_id}',
    access: 'write',
    summary: 'Revoke a service key at once',
    params: KeyParams,
    responses: { 200: Message },
  }),
};
