import { Type } from 'typebox';
import { operation } from './operation.ts';
import { DatabaseParams, Input, Message, Text, withDatabase } from './schemas.ts';

export const users = {
  list: operation({
    id: 'users.list',
    method: 'GET',
    path: '/customer/databases/{database_id}/users',
    access: 'read',
    summary: 'The database users',
    params: DatabaseParams,
    responses: {
      200: Type.Array(
        Type.Object({
          name: Type.String(),
          is_superuser: Type.Boolean(),
          can_login: Type.Boolean(),
          can_create_db: Type.Boolean(),
          can_create_role: Type.Boolean(),
        }),
      ),
    },
  }),
  create: operation({
    id: 'users.create',
    method: 'POST',
    path: '/customer/databases/{database_id}/users',
    access: 'write',
    summary: 'Create a database user',
    params: DatabaseParams,
    body: Input({
      username: Text('1 to 63 bytes', { minLength: 1, maxLength: 63 }),
      password: Type.Optional(Text('generated if omitted', { minLength: 1, maxLength: 4096 })),
    }),
    responses: {
      201: Type.Object({
        message: Type.String(),
        username: Type.String(),
        password: Type.String(),
        connection_string: Type.String(),
        connection_string_with_password: Type.String(),
      }),
    },
    errors: [409, 422],
  }),
  delete: operation({
    id: 'users.delete',
    method: 'DELETE',
    path: '/customer/databases/{database_id}/users/{username}',
    access: 'write',
    summary: 'Delete a database user; what it owns passes to `admin`',
    params: withDatabase({ username: Text('the user') }),
    responses: { 200: Message },
    errors: [409],
  }),
};
