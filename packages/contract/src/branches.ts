import { Type } from 'typebox';
import { ConnectableDatabase } from './databases.ts';
import { operation } from './operation.ts';
import { DatabaseName, DatabaseParams, Input, Text } from './schemas.ts';

export const branches = {
  create: operation({
    id: 'branches.create',
    method: 'POST',
    path: '/customer/databases/{database_id}/branch',
    access: 'account',
    summary: 'Branch a database, as it is or as it was',
    params: DatabaseParams,
    body: Input({
      name: DatabaseName,
      snapshot_at: Type.Optional(
        Text('RFC 3339 UTC; omitted: now', {
          pattern:
            '^\\d{4}-\\d{2}-\\d{2}[Tt ]\\d{2}:\\d{2}:\\d{2}(\\.\\d{1,9})?([Zz]|[+-]\\d{2}:\\d{2})$',
        }),
      ),
    }),
    responses: {
      201: Type.Object({ ...ConnectableDatabase.properties, parent_database_id: Type.String() }),
    },
    errors: [409, 422],
  }),
};
