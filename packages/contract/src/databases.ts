import { Type } from 'typebox';
import { operation } from './operation.ts';
import { DatabaseName, DatabaseParams, Input, Message, Text, Timestamp } from './schemas.ts';

export const Database = Type.Object({
  id: Type.String(),
  name: Type.String(),
  region: Type.String(),
  state: Type.Literal('ready'),
  created_at: Timestamp,
  parent_database_id: Type.Optional(Text('present on a branch')),
  project_id: Type.Optional(Text('present when given at creation')),
});
export const ConnectableDatabase = Type.Object({
  ...Database.properties,
  connection_string: Type.String(),
});
const Credentials = Type.Object({
  admin_user: Type.String(),
  admin_password: Type.String(),
  connection_string: Type.String(),
});
export const CreatedDatabase = Type.Object({
  ...ConnectableDatabase.properties,
  ...Credentials.properties,
});

const newDatabase = {
  region: Type.Optional(Text('deployment region', { minLength: 1, maxLength: 63 })),
  admin_password: Type.Optional(Text('generated if omitted', { minLength: 1, maxLength: 4096 })),
};
const ProjectId = Text('groups databases', { minLength: 1, maxLength: 255 });

export const databases = {
  create: operation({
    id: 'databases.create',
    method: 'POST',
    path: '/customer/databases',
    access: 'account',
    summary: 'Create a database',
    body: Input({ name: DatabaseName, ...newDatabase, project_id: Type.Optional(ProjectId) }),
    responses: { 201: CreatedDatabase },
    errors: [409, 422],
  }),
  list: operation({
    id: 'databases.list',
    method: 'GET',
    path: '/customer/databases',
    access: 'read',
    summary: 'The databases of the account; with a scoped token, those in scope',
    query: Input({ project_id: Type.Optional(ProjectId) }),
    responses: { 200: Type.Array(Database) },
  }),
  get: operation({
    id: 'databases.get',
    method: 'GET',
    path: '/customer/databases/{database_id}',
    access: 'read',
    summary: 'One database',
    params: DatabaseParams,
    responses: { 200: ConnectableDatabase },
  }),
  delete: operation({
    id: 'databases.delete',
    method: 'DELETE',
    path: '/customer/databases/{database_id}',
    access: 'account',
    summary: 'Delete a database for good, with its keys, functions, secrets and backups',
    params: DatabaseParams,
    responses: { 200: Message },
  }),
  resetPassword: operation({
    id: 'databases.resetPassword',
    method: 'POST',
    path: '/customer/databases/{database_id}/reset-password',
    access: 'write',
    summary: "Replace the admin's password",
    params: DatabaseParams,
    responses: { 200: Credentials },
  }),
  credentials: operation({
    id: 'databases.credentials',
    method: 'GET',
    path: '/customer/databases/{database_id}/credentials',
    access: 'write',
    summary: "The admin's credentials",
    params: DatabaseParams,
    responses: { 200: Credentials },
  }),
  batch: operation({
    id: 'databases.batch',
    method: 'POST',
    path: '/customer/databases/batch',
    access: 'account',
    summary: 'Create several databases, each on its own',
    body: Input({
      // What a value must be like is checked item by item, so that one bad name fails alone.
      databases: Type.Array(
        Input({
          name: Type.String(),
          region: Type.Optional(Type.String()),
          admin_password: Type.Optional(Type.String()),
        }),
        { minItems: 1, maxItems: 100 },
      ),
      project_id: Type.Optional(ProjectId),
    }),
    responses: {
      201: Type.Object({
        created: Type.Array(CreatedDatabase),
        failed: Type.Array(
          Type.Object({ name: Type.String(), message: Type.String(), status: Type.Integer() }),
        ),
        total_requested: Type.Integer(),
        total_created: Type.Integer(),
      }),
      200: null,
    },
  }),
};
