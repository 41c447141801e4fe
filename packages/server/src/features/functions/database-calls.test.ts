import { afterAll, beforeAll, expect, test } from 'vitest';
import { openTestEngine, type TestEngine } from '../../engine/postgres/history/open-test-engine.ts';
import { createSessions, type Sessions } from '../../engine/sessions.ts';
import { createDatabaseCalls, type DatabaseRun } from './database-calls.ts';
import { createRunRoles } from './run-roles.ts';

let testEngine: TestEngine;
let sessions: Sessions;
let databaseId: string;

beforeAll(async () => {
  testEngine = await openTestEngine();
  sessions = createSessions(testEngine.engine);
  databaseId = await testEngine.create();
  await testEngine.query(
    databaseId,
    `create table notes (owner text default auth.uid(), body text);
     alter table notes enable row level security;
     create policy own on notes to authenticated using (owner = auth.uid());
     insert into notes values ('ann', 'a'), ('bob', 'b')`,
  );
});
afterAll(async () => {
  await sessions.close();
  await testEngine.close();
});

function open(more: Partial<DatabaseRun> = {}) {
  const run = {
    databaseId,
    runAs: 'authenticated',
    bypassRls: false,
    claims: undefined,
    timeoutMs: 5_000,
  };
  return createDatabaseCalls(
    { sessions, roles: createRunRoles({ sessions }) },
    { ...run, ...more },
  );
}
const rowsOf = async (calls: ReturnType<typeof open>, sql: string) =>
  (await calls.query({ sql, params: [] })).rows;

test('a run for an end user sees that user’s rows, and nothing of it stays', async () => {
  const claims = { sub: 'bob', role: 'authenticated', org: { id: 7 }, note: "it's \\ quoted" };
  const bob = open({ claims });
  expect(await rowsOf(bob, 'select body from notes')).toEqual([['b']]);
  expect(
    await rowsOf(
      bob,
      "select auth.uid(), auth.role(), auth.jwt() -> 'org' ->> 'id', auth.jwt() ->> 'note'",
    ),
  ).toEqual([['bob', 'authenticated', '7', "it's \\ quoted"]]);
  await bob.close();
  const nobody = open();
  expect(await rowsOf(nobody, 'select auth.uid(), auth.jwt()')).toEqual([[null, null]]);
  expect(await rowsOf(nobody, 'select body from notes')).toEqual([]);
  await nobody.close();
});

test('a role that was dropped and made again works; one that is gone is an error', async () => {
  await testEngine.query(databaseId, 'create role worker nologin');
  const roles = createRunRoles({ sessions });
  const as = () =>
    createDatabaseCalls(
      { sessions, roles },
      { databaseId, runAs: 'worker', bypassRls: false, claims: undefined, timeoutMs: 5_000 },
    );
  const who = { sql: 'select current_user', params: [] };
  expect((await as().query(who)).rows).toEqual([['worker']]);
  await testEngine.query(databaseId, 'drop role worker');
  await expect(as().query(who)).rejects.toThrow(/does not exist/);
  await testEngine.query(databaseId, 'create role worker nologin');
  expect((await as().query(who)).rows).toEqual([['worker']]);
});

test.each([
  [{ sql: 1, params: [] }],
  [{ sql: 'select 1', params: 'x' }],
  [{ sql: 'select 1' }],
  [{ sql: 'select $1', params: [{ nonsense: 1 }] }],
  [{ sql: 'select 1', params: [], transaction: 99 }],
  [{ sql: 'select 1', params: [], transaction: '__proto__' }],
  [{ sql: 'select $1::text', params: [nested(50)] }],
])('what is no query is refused: %j', async (args) => {
  const calls = open();
  await expect(calls.query(args as Record<string, unknown>)).rejects.toThrow();
  await calls.close();
});

function nested(depth: number): unknown {
  return depth === 0 ? 1 : { array: [nested(depth - 1)] };
}
