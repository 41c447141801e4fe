import { Type } from 'typebox';
import { operation } from './operation.ts';
import { DatabaseParams } from './schemas.ts';

export const observability = {
  get: operation({
    id: 'observability.get',
    method: 'GET',
    path: '/customer/databases/{database_id}/observability',
    access: 'read',
    summary: 'What was measured over the last 60 s, both over HTTP and the Postgres port',
    params: DatabaseParams,
    responses: {
      200: Type.Object({
        window_seconds: Type.Integer(),
        summary: Type.Object({
          tps: Type.Number(),
          latency_avg_ms: Type.Number(),
          latency_p99_ms: Type.Number(),
          active_connections: Type.Integer(),
          database_storage_bytes: Type.Integer(),
          fs_logical_bytes: Type.Integer(),
        }),
        samples: Type.Array(
          Type.Object({
            query: Type.String(),
            sample_count: Type.Integer(),
            error_count: Type.Integer(),
            latency_avg_ms: Type.Number(),
            latency_p99_ms: Type.Number(),
            latency_max_ms: Type.Number(),
            last_seen_ms_ago: Type.Integer(),
          }),
        ),
      }),
    },
  }),
};
