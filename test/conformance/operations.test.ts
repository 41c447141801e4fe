// Every operation of the contract, table-driven: credentials, missing and mistyped fields,
// malformed bodies. New operations are picked up by themselves.
import { type Operation, operations, type TSchema } from '@coppice/contract';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Account, Answer, CreatedDatabase } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

const all: Operation[] = Object.values(operations).flatMap((group) => Object.values(group));

let service: RunningService;
let account: Account;
let database: CreatedDatabase;
let keys: Record<string, string>;

beforeAll(async () => {
  service = await startService({
    flags: ['--requests-per-second', '100000', '--request-burst', '100000'],
  });
  account = await service.api.register();
  database = await account.database();
  const base = `/customer/databases/${database.id}`;
  const [connect, publishable, serviceKey] = await Promise.all([
    account.post(`${base}/connect-keys`, {}),
    account.post(`${base}/publishable-keys`, {}),
    account.post(`${base}/service-keys`),
  ]);
  keys = {
    'connect key': connect.body.connect_key,
    'publishable key': publishable.body.publishable_key,
    'service key': serviceKey.body.service_key,
    'anonymous secret': account.secret,
    'connect token': (await account.post(`${base}/connect-token`, {})).body.token,
  };
});
afterAll(() => service?.stop());

/** The path with the real database and made-up ids for everything else. */
const pathOf = (operation: Operation, databaseId = database.id) =>
  operation.path.replace('{database_id}', databaseId).replaceAll(/\{\w+\}/g, 'tok_unknown');

function expectError(answer: Answer, status: number): void {
  expect({ status: answer.status, text: answer.text }).toMatchObject({ status });
  expect(Object.keys(answer.body)).toEqual(['message']);
  expect(typeof answer.body.message).toBe('string');
  expect(answer.body.message).not.toBe('');
}

describe.each(all.map((operation) => [operation.id, operation] as const))(
  '%s',
  (_id, operation) => {
    const { method } = operation;

    test('404 for a method that the path does not know', async () => {
      const answer = await service.api.call('PATCH', pathOf(operation), { token: account.token });
      expectError(answer, 404);
    });

    if (operation.access !== 'public')
      test('401 without a valid credential, whatever the body', async () => {
        const path = pathOf(operation);
        const call = (options: object) => service.api.call(method, path, options);
        const body = method === 'GET' || method === 'DELETE' ? {} : { body: '{not json' };
        expectError(await call({ ...body }), 401);
        expectError(await call({ ...body, token: 'garbage' }), 401);
        expectError(await call({ ...body, token: 'eyJhbGciOiJub25lIn0.e30.' }), 401);
        expectError(await call({ ...body, headers: { authorization: 'Basic dTpw' } }), 401);
        expectError(await call({ ...body, headers: { authorization: 'Bearer' } }), 401);
        for (const value of Object.values(keys)) {
          expect(value, 'a key to present').toBeTypeOf('string');
          expectError(await call({ ...body, token: value }), 401);
        }
      });

    if (operation.path.includes('{database_id}'))
      test("404 for a database that is unknown or another customer's", async () => {
        const body = operation.body ? sampleOf(operation.body) : undefined;
        const stranger = await service.api.register();
        for (const [token, id] of [
          [account.token, 'db_unknown'],
          [stranger.token, database.id],
          [account.token, '%00'],
        ] as const)
          expectError(await service.api.call(method, pathOf(operation, id), { token, body }), 404);
      });

    if (operation.body) {
      const token = () => (operation.access === 'public' ? undefined : account.token);
      const send = (body: unknown) =>
        service.api.call(method, pathOf(operation), { token: token(), body });

      test('400 for bodies that are not JSON objects', async () => {
        for (const body of [
          '{',
          '{"a":',
          'nonsense',
          '[]',
          '[{}]',
          '"text"',
          '1',
          'null',
          '{"a":1}x',
        ])
          expectError(await send(body), 400);
      });

      const { properties } = operation.body;
      const required: readonly string[] = operation.body.required ?? [];
      for (const [name, schema] of Object.entries(properties)) {
        if (required.includes(name))
          test(`400 without ${name}`, async () => {
            const { [name]: _omitted, ...rest } = sampleOf(operation.body!) as Record<
              string,
              unknown
            >;
            expectError(await send(rest), 400);
            expectError(await send({ ...rest, [name]: null }), 400);
          });
        test(`400 for ${name} of a wrong type`, async () => {
          for (const value of wrongValues(schema))
            expectError(
              await send({ ...(sampleOf(operation.body!) as object), [name]: value }),
              400,
            );
        });
      }
      if (required.length > 0)
        test('400 for a missing or empty body, whatever the content type', async () => {
          expectError(await send(undefined), 400);
          for (const type of [
            'application/json',
            'text/plain',
            'application/x-www-form-urlencoded',
          ])
            expectError(
              await service.api.call(method, pathOf(operation), {
                token: token(),
                headers: { 'content-type': type },
              }),
              400,
            );
        });
    }
  },
);

test('unknown paths and other methods are 404 with a message', async () => {
  for (const [method, path] of [
    ['GET', '/customer'],
    ['GET', '/customer/nothing'],
    ['GET', '/customer/anonymous-register'],
    ['DELETE', '/customer/me'],
    ['PATCH', '/customer/databases'],
    ['PUT', `/customer/databases/${database.id}`],
    ['OPTIONS', '/customer/me'],
  ] as const)
    expectError(await service.api.call(method, path, { token: account.token }), 404);
});

/** A value that passes the schema, with nothing optional in it. */
function sampleOf(schema: TSchema): unknown {
  const node = schema as Record<string, any>;
  if (node.type === 'object')
    return Object.fromEntries(
      (node.required ?? []).map((name: string) => [name, sampleOf(node.properties[name])]),
    );
  if (node.type === 'array') return [sampleOf(node.items)];
  if (node.type === 'string')
    return node.pattern?.includes('\\.') && !node.pattern.includes('p{L}')
      ? 'index.handler'
      : 'sample';
  if (node.type === 'boolean') return true;
  if (node.type === 'number' || node.type === 'integer') return node.minimum ?? 1;
  if (node.enum) return node.enum[0];
  return {};
}

function wrongValues(schema: TSchema): unknown[] {
  const node = schema as Record<string, any>;
  const values: Record<string, unknown[]> = {
    string: [1, true, {}, ['a']],
    number: ['1', true, {}],
    integer: ['1', 1.5, {}],
    boolean: ['true', 1, {}],
    array: ['a', {}, 1],
    object: ['a', 1, []],
  };
  return values[node.type ?? 'string'] ?? [];
}
