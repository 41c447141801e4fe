import { Type } from 'typebox';
import { operation } from './operation.ts';
import { DatabaseParams } from './schemas.ts';

export const schema = {
  get: operation({
    id: 'schema.get',
    method: 'GET',
    path: '/customer/databases/{database_id}/schema',
    access: 'read',
    summary: 'Tables and views',
    params: DatabaseParams,
    responses: {
      200: Type.Object({
        tables: Type.Array(
          Type.Object({
            schema: Type.String(),
            name: Type.String(),
            columns: Type.Array(
              Type.Object({ name: Type.String(), type: Type.String(), nullable: Type.Boolean() }),
            ),
          }),
        ),
        views: Type.Array(Type.Object({ name: Type.String(), schema: Type.String() })),
      }),
    },
  }),
};
