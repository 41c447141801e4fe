import { Type } from 'typebox';
import { operation } from './operation.ts';
import { DatabaseParams, Input, Text } from './schemas.ts';

export const sql = {
  execute: operation({
    id: 'sql.execute',
    method: 'POST',
    path: '/customer/databases/{database_id}/sql',
    access: 'sql',
    summary: 'Run SQL in a clean session',
    description: 'Exactly one of `query` and `file_content`. The answer is the last statement’s.',
    params: DatabaseParams,
    body: Input({
      query: Type.Optional(Text('one or more statements')),
      file_content: Type.Optional(Text('the same, as the content of a file')),
      params: Type.Optional(
        Type.Array(Type.Unknown(), { description: 'binds $1… of a single statement' }),
      ),
    }),
    responses: {
      200: Type.Object({
        columns: Type.Array(Type.Object({ name: Type.String(), data_type: Type.String() })),
        rows: Type.Array(Type.Array(Type.Unknown())),
        row_count: Type.Integer(),
        command: Type.String(),
      }),
    },
    errors: [422],
  }),
  dump: operation({
    id: 'sql.dump',
    method: 'POST',
    path: '/customer/databases/{database_id}/dump',
    access: 'sql',
    summary: 'Export the database as SQL',
    params: DatabaseParams,
    body: Input({ ddl_only: Type.Optional(Type.Boolean({ description: 'schema only' })) }),
    responses: { 200: Type.Object({ sql: Type.String(), object_count: Type.Integer() }) },
    errors: [422],
  }),
};
