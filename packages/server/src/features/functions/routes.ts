import { operations } from '@coppice/contract';
import { type Route, route } from '../../kernel/route.ts';
import type { FunctionsService } from './service.ts';

export const functionRoutes = (service: FunctionsService): Route[] => [
  route(operations.functions.deploy, ({ database, body }) => service.deploy(database.id, body)),
  route(operations.functions.list, ({ database }) => service.list(database.id)),
  route(operations.functions.invoke, ({ database, params, body }) =>
    service.invoke(database.id, params.function_id, {
      input: body.input,
      idempotencyKey: body.idempotency_key,
    }),
  ),
  route(operations.functions.runs, ({ database, params, query }) =>
    service.runs(database.id, params.function_id, query.limit),
  ),
  route(operations.functions.run, ({ database, params }) =>
    service.run(database.id, params.function_id, params.run_id),
  ),
  route(operations.functions.logs, ({ database, params }) =>
    service.logs(database.id, params.function_id, params.run_id),
  ),
];
