import { Type } from 'typebox';
import { operation } from './operation.ts';
import { DatabaseParams, Input, Text, Timestamp } from './schemas.ts';

export const migrations = {
  list: operation({
    id: 'migrations.list',
    method: 'GET',
    path: '/customer/databases/{database_id}/migrations',
    access: 'read',
    summary: 'The migrations applied, oldest first',
    params: DatabaseParams,
    responses: {
      200: Type.Array(
        Type.Object({
          name: Type.String(),
          checksum: Text('`sha256:<hex>`'),
          applied_at: Timestamp,
          sql_preview: Type.String(),
        }),
      ),
    },
  }),
  apply: operation({
    id: 'migrations.apply',
    method: 'POST',
    path: '/customer/databases/{database_id}/migrations',
    access: 'write',
    summary: 'Apply a migration in one transaction with its record',
    params: DatabaseParams,
    body: Input({
      name: Text('unique within the database', { minLength: 1, maxLength: 255 }),
      sql: Text('the statements', { minLength: 1 }),
      checksum: Type.Optional(Text('`sha256:<hex>` of `sql`')),
    }),
    responses: { 201: Type.Object({ status: Type.Literal('applied'), name: Type.String() }) },
    errors: [409, 422],
  }),
};
