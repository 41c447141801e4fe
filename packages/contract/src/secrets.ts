import { Type } from 'typebox';
import { operation } from './operation.ts';
import { DatabaseParams, Input, Text, Timestamp, withDatabase } from './schemas.ts';

const SecretParams = withDatabase({ secret_name: Text('the secret') });
const Value = Text('stored encrypted, never returned', { maxLength: 65_536 });

export const secrets = {
  list: operation({
    id: 'secrets.list',
    method: 'GET',
    path: '/customer/databases/{database_id}/secrets',
    access: 'write',
    summary: 'The names of the secrets',
    params: DatabaseParams,
    responses: {
      200: Type.Array(
        Type.Object({ name: Type.String(), created_at: Timestamp, updated_at: Timestamp }),
      ),
    },
  }),
  create: operation({
    id: 'secrets.create',
    method: 'POST',
    path: '/customer/databases/{database_id}/secrets',
    access: 'write',
    summary: 'Create a secret',
    params: DatabaseParams,
    body: Input({
      name: Text('letters, digits and underscores', { pattern: '^[A-Za-z0-9_]+$', maxLength: 255 }),
      value: Value,
    }),
    responses: { 201: Type.Object({ name: Type.String(), created_at: Timestamp }) },
    errors: [409, 422],
  }),
  update: operation({
    id: 'secrets.update',
    method: 'PUT',
    path: '/customer/databases/{database_id}/secrets/{secret_name}',
    access: 'write',
    summary: 'Replace the value of a secret',
    params: SecretParams,
    body: Input({ value: Value }),
    responses: { 200: Type.Object({ name: Type.String(), updated_at: Timestamp }) },
  }),
  delete: operation({
    id: 'secrets.delete',
    method: 'DELETE',
    path: '/customer/databases/{database_id}/secrets/{secret_name}',
    access: 'write',
    summary: 'Delete a secret',
    params: SecretParams,
    responses: { 204: null },
  }),
};
