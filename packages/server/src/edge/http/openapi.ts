// The OpenAPI 3.1 document of the interface, made from the contract.
import { ErrorBody, type Operation, operations } from '@coppice/contract';

const descriptions: Record<number, string> = {
  400: 'Bad request: a missing field, a wrong type, malformed JSON',
  401: 'Missing, expired or invalid credential',
  403: 'The token does not have the scope',
  404: 'Not found, or not yours',
  409: 'Conflict',
  422: 'Understood but not possible',
  429: 'Too many requests; see Retry-After',
  500: 'Internal error',
};

export function openApiDocument(serverUrl: string): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const [feature, group] of Object.entries(operations))
    for (const operation of Object.values(group) as Operation[]) {
      const path = (paths[operation.path] ??= {});
      path[operation.method.toLowerCase()] = describe(operation, feature);
    }
  return {
    openapi: '3.1.0',
    info: {
      title: 'Coppice',
      version: '0.1.0',
      description: 'Hosted SQL databases: every one its own Postgres.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: serverUrl }],
    tags: Object.keys(operations).map((name) => ({ name })),
    security: [{ bearer: [] }],
    paths,
    components: {
      securitySchemes: { bearer: { type: 'http', scheme: 'bearer' } },
      schemas: { Error: ErrorBody },
    },
  };
}

function describe(operation: Operation, feature: string): object {
  return {
    operationId: operation.id,
    tags: [feature],
    summary: operation.summary,
    ...(operation.description ? { description: operation.description } : {}),
    ...(operation.access === 'public' ? { security: [] } : {}),
    parameters: [
      ...parameters(operation, 'params', 'path'),
      ...parameters(operation, 'query', 'query'),
    ],
    ...(operation.body
      ? {
          requestBody: {
            required: (operation.body.required ?? []).length > 0,
            content: { 'application/json': { schema: operation.body } },
          },
        }
      : {}),
    responses: { ...successes(operation), ...failures(operation) },
  };
}

function parameters(operation: Operation, part: 'params' | 'query', where: string): object[] {
  const schema = operation[part];
  if (!schema) return [];
  return Object.entries(schema.properties).map(([name, property]) => ({
    name,
    in: where,
    required: (schema.required ?? []).includes(name),
    schema: property,
  }));
}

function successes(operation: Operation): Record<string, object> {
  return Object.fromEntries(
    Object.entries(operation.responses).map(([status, schema]) => [
      status,
      {
        description: operation.summary,
        ...(schema ? { content: { 'application/json': { schema } } } : {}),
      },
    ]),
  );
}

function failures(operation: Operation): Record<string, object> {
  const usual =
    operation.access === 'public' ? [400, 401, 429, 500] : [400, 401, 403, 404, 429, 500];
  return Object.fromEntries(
    [...usual, ...(operation.errors ?? [])].sort().map((status) => [
      status,
      {
        description: descriptions[status],
        content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
      },
    ]),
  );
}
