import { expect, test } from 'vitest';
import { copiesThroughClient, splitStatements, TooManyStatements } from './statements.ts';

const pieces = (text: string) =>
  splitStatements(text).map(({ start, end }) => text.slice(start, end).trim());

test.each<[string, string[]]>([
  ['select 1', ['select 1']],
  ['select 1; select 2;', ['select 1', 'select 2']],
  [';;  ; -- x\n /* y; */ ;', []],
  ["select ';'; select 'it''s;'", ["select ';'", "select 'it''s;'"]],
  ["select E'\\';', 1; select 2", ["select E'\\';', 1", 'select 2']],
  ["select 'back\\'; select 2", ["select 'back\\'", 'select 2']],
  ["select name'x;'; select 1", ["select name'x;'", 'select 1']],
  ['select ";"; select """;"', ['select ";"', 'select """;"']],
  ['select $$;$$; select $a$ ; $$ ; $a$;', ['select $$;$$', 'select $a$ ; $$ ; $a$']],
  ['select a$b$c; select 1', ['select a$b$c', 'select 1']],
  ['select $1; select $2', ['select $1', 'select $2']],
  ['select 1 -- ; x\n; select 2', ['select 1 -- ; x', 'select 2']],
  ['select /* ; /* ; */ ; */ 1; select 2', ['select /* ; /* ; */ ; */ 1', 'select 2']],
  [
    'create rule r as on insert to t do (select 1; select 2); select 3',
    ['create rule r as on insert to t do (select 1; select 2)', 'select 3'],
  ],
  [
    'create or replace function f() returns int begin atomic; select case when true then 1 end; end; select 2',
    [
      'create or replace function f() returns int begin atomic; select case when true then 1 end; end',
      'select 2',
    ],
  ],
  ['begin; select 1; end; select 2', ['begin', 'select 1', 'end', 'select 2']],
  ["select 'unfinished; select 2", ["select 'unfinished; select 2"]],
  ['select $x$ unfinished; select 2', ['select $x$ unfinished; select 2']],
  ['/* unfinished ; select 1', []],
  ['*; + ;', ['*', '+']],
])('%s', (text, expected) => {
  expect(pieces(text)).toEqual(expected);
});

test('the first words, in lower case, comments left out', () => {
  expect(splitStatements('/* a */ ROLLBACK -- b\n TO Savepoint x')[0]?.words).toEqual([
    'rollback',
    'to',
    'savepoint',
    'x',
  ]);
});

test('COPY that needs the client', () => {
  const copies = (text: string) =>
    splitStatements(text).map((statement) => copiesThroughClient(text, statement));
  expect(copies("copy t from stdin; COPY t TO STDOUT; copy t from '/x'; select 'stdin'")).toEqual([
    true,
    true,
    false,
    false,
  ]);
});

test('hostile texts take time in proportion to their length, and no more than so many statements', () => {
  const startedMs = performance.now();
  for (const text of [
    ';'.repeat(2_000_000),
    `select E'${"''".repeat(1_000_000)}'`,
    '/*'.repeat(1_000_000),
    '$a$ $b$ '.repeat(200_000),
    '('.repeat(1_000_000),
  ])
    splitStatements(text);
  expect(() => splitStatements('a;'.repeat(1_000_000))).toThrow(TooManyStatements);
  // A tenth of that on an idle machine; the square of it for one that is not linear.
  expect(performance.now() - startedMs).toBeLessThan(10_000);
});
