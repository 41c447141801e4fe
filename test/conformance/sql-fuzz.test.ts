// Random SQL and random bodies: the answer is always one of the listed statuses with a message, the
// service goes on, and no session is left behind.
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { seed, sizeOf } from '../../scripts/soak-sizes.ts';
import type { Account, Answer } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

const runs = sizeOf('sql-texts');
const atOnce = 8;

let service: RunningService;
let account: Account;
let reader: Account;
let id: string;

beforeAll(async () => {
  service = await startService({
    flags: ['--requests-per-second', '1000000', '--request-burst', '1000000'],
  });
  account = await service.api.register();
  ({ id } = await account.database());
  const { body } = await account.post('/customer/tokens', {
    scope_json: JSON.stringify({ databases: [{ id, access: 'ro' }] }),
  });
  reader = account.as(body.token);
});
afterAll(() => service?.stop());

const words = [
  ..."select insert update delete from where table t into values ( ) , ; * 1 2.5 null true $1 $$ $a$ ' \" -- /* */ \\ :: int text json[] array[ row( , begin commit rollback savepoint a to copy stdin stdout with as create temp drop if exists alter role admin set reset all my.x = 'v' discard execute prepare declare c cursor for fetch close listen notify do language plpgsql lock in share mode explain analyze vacuum generate_series(1,10) pg_sleep(0) now() count(*) group by 1 order limit offset union \n \t E'\\n' U&'\\0061' \u0000 ü 😀 \ufeff \ud800".split(
    ' ',
  ),
  'select 1',
  'create table if not exists t (a int, b text)',
  "do $$ begin raise 'x'; end $$",
  'select pg_terminate_backend(pg_backend_pid())',
  "set client_encoding = 'latin1'",
  'set transaction_read_only = off',
];
const sqlText = fc.oneof(
  fc.array(fc.constantFrom(...words), { maxLength: 14 }).map((parts) => parts.join(' ')),
  fc.string({ unit: 'binary', maxLength: 60 }),
);
const body = fc.oneof(
  { weight: 6, arbitrary: sqlText.map((query) => ({ query })) },
  { weight: 1, arbitrary: sqlText.map((query) => ({ file_content: query })) },
  {
    weight: 2,
    arbitrary: fc.record({ query: sqlText, params: fc.array(fc.jsonValue(), { maxLength: 4 }) }),
  },
  { weight: 1, arbitrary: fc.jsonValue() },
  { weight: 1, arbitrary: fc.string({ maxLength: 50 }) },
);

function check(sent: unknown, { status, body: got, text }: Answer): void {
  const context = JSON.stringify(sent);
  expect({ context, text, ok: [200, 400, 403, 422, 429].includes(status) }).toMatchObject({
    ok: true,
  });
  if (status === 200) {
    expect(Object.keys(got)).toEqual(['columns', 'rows', 'row_count', 'command']);
    for (const row of got.rows) expect(row.length).toBe(got.columns.length);
  } else {
    expect(Object.keys(got)).toEqual(['message']);
    expect(got.message.length).toBeGreaterThan(0);
  }
}

test(`${runs} random texts and bodies (seed ${seed})`, async () => {
  const sample = fc.sample(fc.tuple(body, fc.boolean()), {
    numRuns: runs,
    seed,
  });
  const path = `/customer/databases/${id}/sql`;
  let next = 0;
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      for (let n = next++; n < sample.length; n = next++) {
        const [sent, isReadOnly] = sample[n]!;
        check(sent, await (isReadOnly ? reader : account).post(path, sent));
      }
    }),
  );
  expect((await account.sql(id, 'select 1')).rows).toEqual([[1]]);
  const leftovers = async () =>
    (
      await account.sql(
        id,
        `select count(*) filter (where state <> 'idle' and pid <> pg_backend_pid()), count(*)
           from pg_stat_activity where usename in ('admin', 'readonly') and backend_type = 'client backend'`,
      )
    ).rows[0];
  for (;;) {
    const [busy, all] = await leftovers();
    if (busy === 0 && all <= 8) break;
  }
  expect(service.log()).not.toMatch(/"level":50/);
}, 600_000);
