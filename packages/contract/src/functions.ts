import { Type } from 'typebox';
import { operation } from './operation.ts';
import { DatabaseParams, Input, Nullable, Text, Timestamp, withDatabase } from './schemas.ts';

const Visibility = Type.Enum(['public', 'private']);
const FunctionRecord = Type.Object({
  id: Type.String(),
  name: Type.String(),
  enabled: Type.Boolean(),
  visibility: Visibility,
  created_at: Timestamp,
  updated_at: Timestamp,
});
const FunctionVersion = Type.Object({
  id: Type.String(),
  version: Type.Integer(),
  entrypoint: Type.String(),
  bundle_ref: Type.String(),
  bundle_digest: Nullable(Type.String()),
  run_as: Type.String(),
  bypass_rls: Type.Boolean(),
  created_at: Timestamp,
});
const RunStatus = Type.Enum(['running', 'completed', 'failed', 'timed_out']);
const FunctionRun = Type.Object({
  id: Type.String(),
  function_id: Type.String(),
  version_id: Type.String(),
  trigger_type: Type.String(),
  status: RunStatus,
  run_as: Type.String(),
  attempt: Type.Integer(),
  created_at: Timestamp,
});
const Paths = Type.Array(Type.String({ maxLength: 4096 }), { maxItems: 1000 });
const FunctionParams = withDatabase({ function_id: Text('the function') });
const RunParams = withDatabase({ function_id: Text('the function'), run_id: Text('the run') });

export const functions = {
  deploy: operation({
    id: 'functions.deploy',
    method: 'POST',
    path: '/customer/databases/{database_id}/functions',
    access: 'write',
    summary: 'Deploy a function, or the next version of one',
    params: DatabaseParams,
    body: Input({
      name: Text('unique within the database', {
        minLength: 1,
        maxLength: 63,
        pattern: '^[A-Za-z0-9_-]+$',
      }),
      entrypoint: Text('`module.handler`', {
        pattern: '^[^\\s]+\\.[A-Za-z_$][\\w$]*$',
        maxLength: 255,
      }),
      bundle_ref: Text('`data:` URL, `fs:/path` or `https://…`', { minLength: 1 }),
      bundle_digest: Type.Optional(Text('`sha256:<hex>`')),
      run_as: Type.Optional(
        Text('database role, default `authenticated`', { minLength: 1, maxLength: 63 }),
      ),
      bypass_rls: Type.Optional(Type.Boolean()),
      limits: Type.Optional(
        Input({
          timeout_ms: Type.Optional(Type.Integer({ minimum: 1, maximum: 300_000 })),
          memory_mb: Type.Optional(Type.Integer({ minimum: 16, maximum: 4096 })),
        }),
      ),
      network_allowlist: Type.Optional(
        Type.Array(Type.String({ minLength: 1, maxLength: 260 }), { maxItems: 100 }),
      ),
      fsx_scope: Type.Optional(Input({ read: Type.Optional(Paths), write: Type.Optional(Paths) })),
      secret_bindings: Type.Optional(Type.Array(Type.String(), { maxItems: 100 })),
      cron_schedule: Type.Optional(Text('five fields, or six with seconds; UTC')),
      visibility: Type.Optional(Visibility),
    }),
    responses: { 201: Type.Object({ function: FunctionRecord, version: FunctionVersion }) },
    errors: [422],
  }),
  list: operation({
    id: 'functions.list',
    method: 'GET',
    path: '/customer/databases/{database_id}/functions',
    access: 'read',
    summary: 'The functions of a database',
    params: DatabaseParams,
    responses: { 200: Type.Array(FunctionRecord) },
  }),
  invoke: operation({
    id: 'functions.invoke',
    method: 'POST',
    path: '/customer/databases/{database_id}/functions/{function_id}/invoke',
    access: 'write',
    summary: 'Run a function and wait for its result',
    params: FunctionParams,
    body: Input({
      input: Type.Optional(Type.Object({}, { description: 'handed to the handler' })),
      idempotency_key: Type.Optional(
        Text("the same key gives the first run's answer", { minLength: 1, maxLength: 255 }),
      ),
    }),
    responses: {
      200: Type.Object({
        run_id: Type.String(),
        function_id: Type.String(),
        version_id: Type.String(),
        status: RunStatus,
        result_json: Text('JSON text'),
      }),
    },
    errors: [409, 422],
  }),
  runs: operation({
    id: 'functions.runs',
    method: 'GET',
    path: '/customer/databases/{database_id}/functions/{function_id}/runs',
    access: 'read',
    summary: 'The runs of a function, newest first',
    params: FunctionParams,
    query: Input({
      limit: Type.Optional(Text('1 to 1000, default 100', { pattern: '^[0-9]{1,6}$' })),
    }),
    responses: { 200: Type.Array(FunctionRun) },
  }),
  run: operation({
    id: 'functions.run',
    method: 'GET',
    path: '/customer/databases/{database_id}/functions/{function_id}/runs/{run_id}',
    access: 'read',
    summary: 'One run',
    params: RunParams,
    responses: { 200: FunctionRun },
  }),
  logs: operation({
    id: 'functions.logs',
    method: 'GET',
    path: '/customer/databases/{database_id}/functions/{function_id}/runs/{run_id}/logs',
    access: 'read',
    summary: 'What a run printed',
    params: RunParams,
    responses: { 200: Type.Object({ run_id: Type.String(), logs: Type.String() }) },
  }),
};
