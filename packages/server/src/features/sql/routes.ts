import { operations } from '@coppice/contract';
import { badRequest } from '../../kernel/app-error.ts';
import { accessTo } from '../../kernel/principal.ts';
import { type Route, route } from '../../kernel/route.ts';
import type { DumpService } from './dump-service.ts';
import type { SqlService } from './service.ts';

export function sqlRoutes(sql: SqlService, dumps: DumpService): Route[] {
  return [
    route(operations.sql.execute, (call) => {
      const { principal, database, body } = call;
      const { query, file_content: fileContent, params } = body;
      if ((query === undefined) === (fileContent === undefined))
        throw badRequest('exactly one of query and file_content is required');
      return sql.execute({
        databaseId: database.id,
        text: (query ?? fileContent)!,
        params,
        readOnly: accessTo(principal, database.id) === 'ro',
        isCallerGone: () => call.isGone,
      });
    }),
    route(operations.sql.dump, ({ database, body, signal }) =>
      dumps.dump({ databaseId: database.id, ddlOnly: body.ddl_only ?? false, signal }),
    ),
  ];
}
