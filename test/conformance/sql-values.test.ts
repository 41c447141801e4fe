// Every value that a query can return is written as `to_json` writes it: asked of the server
// itself, value by value.
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { seed, sizeOf } from '../../scripts/soak-sizes.ts';
import type { Account } from '../support/api.ts';
import { type RunningService, startService } from '../support/service.ts';

let service: RunningService;
let account: Account;
let id: string;

beforeAll(async () => {
  service = await startService({
    flags: ['--requests-per-second', '1000000', '--request-burst', '1000000'],
  });
  account = await service.api.register();
  ({ id } = await account.database());
  await account.sql(
    id,
    `create extension hstore; create extension citext; create extension ltree; create extension cube; create extension isn;
     create type mood as enum ('sad', 'so so', 'quo"te');
     create domain positive as int check (value > 0);
     create domain price as numeric(10,2);
     create domain positives as positive[];
     create type pair as (a int, b text);
     create type nested as (p pair, ps pair[], m mood, t timestamptz, j jsonb, d price);
     create table wide (id int, dropped int, name varchar(10), at timestamptz, tags text[]);
     alter table wide drop column dropped;
     insert into wide values (1, 'x', '2020-01-02 03:04:05+00', '{a,b}');
     create type textrange as range (subtype = text);
     create function both_json(mood) returns json language sql immutable as $$ select json_build_object('mood', $1::text) $$;
     create type level as enum ('low', 'high');
     create function level_json(level) returns json language sql immutable as $$ select to_json('level ' || $1::text) $$;
     create cast (level as json) with function level_json(level);`,
  );
});
afterAll(() => service?.stop());

/** Runs `select <expression>, to_json(<expression>)` and compares the texts of the two columns. */
async function compare(expressions: string[], before = ''): Promise<void> {
  const list = expressions.map((e) => `${e}, to_json(${e})`).join(',\n');
  const answer = await account.post(`/customer/databases/${id}/sql`, {
    query: `${before}select ${list}`,
  });
  expect({ status: answer.status, text: answer.status === 200 ? '' : answer.text }).toEqual({
    status: 200,
    text: '',
  });
  const [row] = answer.body.rows;
  const digits = splitTopLevel(answer.text);
  expressions.forEach((expression, index) => {
    expect({ expression, value: row[2 * index] }).toEqual({
      expression,
      value: row[2 * index + 1],
    });
    // The digits of numbers, too, which parsing would round.
    if (typeof row[2 * index] === 'number') expect(digits[2 * index]).toBe(digits[2 * index + 1]);
  });
}

/** The texts of the values of the only row. */
function splitTopLevel(text: string): string[] {
  const start = text.indexOf('"rows":[[') + '"rows":[['.length;
  const values: string[] = [];
  let depth = 0;
  let from = start;
  for (let at = start; depth >= 0; at++) {
    const character = text[at];
    if (character === '"') {
      for (at++; text[at] !== '"'; at++) if (text[at] === '\\') at++;
    } else if (character === '[' || character === '{') depth++;
    else if (character === ']' || character === '}') depth--;
    if (depth < 0 || (depth === 0 && character === ',')) {
      values.push(text.slice(from, at));
      from = at + 1;
    }
  }
  return values;
}

const literals: Record<string, string[]> = {
  boolean: ['true', 'false'],
  smallint: ['-32768', '0', '32767'],
  integer: ['-2147483648', '0', '2147483647'],
  bigint: ['-9223372036854775808', '0', '9223372036854775807'],
  real: ['0', '-0', '1.5', '3.4028235e38', '1e-45', 'NaN', 'Infinity', '-Infinity'],
  'double precision': ['0.1', '1e21', '-1.7976931348623157e308', '5e-324', 'NaN', 'Infinity'],
  numeric: [
    '0',
    '0.00',
    '-1.2300',
    '1e40',
    `${'9'.repeat(200)}.${'1'.repeat(200)}`,
    'NaN',
    '-Infinity',
  ],
  'numeric(6,2)': ['1.5', '-9999.99'],
  money: ['1234.5', '-0.01'],
  text: [
    '',
    ' ',
    'a"b\\c/d',
    'tab\tnl\ncr\rff\fbs\b\u0001\u001f\u007f',
    'ü名😀\u2028',
    'null',
    'NULL',
  ],
  'character varying(3)': ['abc', ''],
  'character(5)': ['ab'],
  '"char"': ['a', '\\200'],
  name: ['x'],
  bytea: ['', '\\x00ff5c', '\\xdeadbeef'],
  date: ['2020-02-29', '0044-03-15 BC', 'infinity', '-infinity', '5874897-12-31'],
  time: ['00:00', '23:59:59.999999', '24:00'],
  timetz: ['12:34:56.7+05:30'],
  timestamp: [
    '2020-01-01 00:00:00',
    '1999-12-31 23:59:59.123456',
    '0044-03-15 12:00 BC',
    'infinity',
    '294276-12-31 23:59:59.999999',
  ],
  timestamptz: [
    '2020-01-01 00:00:00+00',
    '1900-01-01 00:00:00.5+01',
    '0044-03-15 12:00+00 BC',
    '-infinity',
    '4713-01-01 00:00:00+00 BC',
  ],
  interval: ['0', '1 year 2 mons -3 days 04:05:06.789', '-00:00:01', 'infinity'],
  uuid: ['a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'],
  json: [
    '{"b": 1,  "a": [1, 2.50, null, "x\\u00e9"]}',
    'null',
    '"text"',
    '12345678901234567890',
    ' [1 ,\n2] ',
  ],
  jsonb: ['{"b": 1,  "a": [1, 2.50, null]}', 'null', '"a\\"b"', '1e3'],
  jsonpath: ['$.a[*] ? (@ > 1)'],
  xml: ['<a b="c">d</a>'],
  inet: ['192.168.0.1', '::1/64'],
  cidr: ['10.0.0.0/8'],
  macaddr: ['08:00:2b:01:02:03'],
  macaddr8: ['08:00:2b:01:02:03:04:05'],
  bit: ['1'],
  'bit(4)': ['1010'],
  'bit varying': ['', '10101'],
  point: ['(1,2.5)'],
  line: ['{1,2,3}'],
  lseg: ['[(1,2),(3,4)]'],
  box: ['(3,4),(1,2)'],
  path: ['((1,2),(3,4))', '[(1,2),(3,4)]'],
  polygon: ['((0,0),(1,1),(2,0))'],
  circle: ['<(1,2),3>'],
  tsvector: ["'a':1A 'b c':2"],
  tsquery: ["'a' & !'b'"],
  int4range: ['[1,5)', 'empty', '(,)'],
  int8range: ['[1,9223372036854775806)'],
  numrange: ['[1.5,2.5]'],
  tsrange: ['[2020-01-01,2020-02-01)'],
  tstzrange: ['[2020-01-01,)'],
  daterange: ['[2020-01-01,2020-02-01)'],
  int4multirange: ['{[1,3),[5,7)}', '{}'],
  datemultirange: ['{[2020-01-01,2020-02-01)}'],
  oid: ['0', '4294967295'],
  xid: ['1'],
  xid8: ['18446744073709551615'],
  cid: ['1'],
  tid: ['(0,1)'],
  pg_lsn: ['16/B374D848'],
  pg_snapshot: ['10:20:10,14,15'],
  txid_snapshot: ['10:20:10,14,15'],
  regclass: ['pg_class', '-'],
  regtype: ['integer'],
  regproc: ['now'],
  regprocedure: ['sum(int4)'],
  regoper: ['||/'],
  regoperator: ['+(int4,int4)'],
  regnamespace: ['pg_catalog'],
  regrole: ['admin'],
  regcollation: ['"C"'],
  regconfig: ['english'],
  regdictionary: ['simple'],
  int2vector: ['', '1', '1 2 -3'],
  oidvector: ['', '1', '1 2 3'],
  refcursor: ['c'],
  aclitem: ['admin=r/admin'],
  gtsvector: [],
  cstring: ['abc'],
  // What extensions and customers bring.
  mood: ['sad', 'so so', 'quo"te'],
  positive: ['7'],
  price: ['1.5'],
  positives: ['{1,2,3}'],
  textrange: ['[a,b)', '["a,b",)'],
  hstore: ['', 'a=>1, "b \\"c"=>NULL, d=>"x\\"y"'],
  citext: ['AbC'],
  ltree: ['a.b.c'],
  cube: ['(1,2),(3,4)'],
  isbn13: ['9780306406157'],
  level: ['low', 'high'],
  pair: ['(1,"a b")', '(,)', '(2,"")', '(3,"q""u\\\\o,t(e)")', '(4,NULL)'],
  nested: [
    '("(1,""x y"")","{""(2,b)"",NULL,""(3,\\\\""c d\\\\"")""}",sad,"2020-01-01 00:00:00+00","{""k"": [1, 2]}",3.10)',
    '(,,,,,)',
  ],
};

const quote = (text: string) =>
  text.includes('\\')
    ? ` E'${text.replaceAll('\\', '\\\\').replaceAll("'", "''")}'`
    : `'${text.replaceAll("'", "''")}'`;

test.each(Object.entries(literals))('%s', async (type, values) => {
  const expressions = [...values.map((value) => `${quote(value)}::${type}`), `null::${type}`];
  await compare(expressions);
  if (type === 'cstring' || type === 'aclitem' || type === 'positives') return;
  // The same values as elements of arrays: flat, with nulls, of two dimensions, with odd bounds.
  const list = values.map((value) => `${quote(value)}::${type}`).join(', ');
  if (values.length > 0)
    await compare([
      `array[${list}]`,
      `array[${list}, null]`,
      `array[array[${list}], array[${list}]]`,
      `array_fill((array[${list}])[1], array[2, 2], array[0, -3])`,
      `'{}'::${type}[]`,
      `null::${type}[]`,
    ]);
});

test('every type with a fixed OID whose null can be asked for', async () => {
  const { rows } = await account.sql(
    id,
    `select format_type(oid, null) from pg_type
      where oid < 10000 and typtype in ('b', 'e', 'r', 'm') order by oid`,
  );
  const types = rows
    .map(([name]: [string]) => name)
    .filter((name: string) => !/^(xml|"char")$/.test(name));
  expect(types.length).toBeGreaterThan(150);
  for (let from = 0; from < types.length; from += 50)
    await compare(types.slice(from, from + 50).map((type: string) => `null::${type}`));
});

test('rows, anonymous records and whatever holds them', async () => {
  await compare([
    '(select w from wide w)',
    '(select array_agg(w) from wide w)',
    '(select t from (select 1 a, null b) t)',
  ]);
  await compare([
    "row(1, 'a b', null, row(2.50, array['x']), now() - now())",
    'row(row())',
    'array[row(1, 2), row(3, 4)]',
  ]);
  await compare([
    "(1, 'x')::pair",
    '(select c from pg_class c where oid = 1259)',
    '(select histogram_bounds from pg_stats where histogram_bounds is not null limit 1)',
  ]);
  const { body } = await account.post(`/customer/databases/${id}/sql`, {
    query:
      'with q as (select n, n::text t from generate_series(1, 3) n) select q, q.n from q order by n desc -- all',
  });
  expect(body).toMatchObject({
    columns: [
      { name: 'q', data_type: 'record' },
      { name: 'n', data_type: 'integer' },
    ],
    rows: [
      [{ n: 3, t: '3' }, 3],
      [{ n: 2, t: '2' }, 2],
      [{ n: 1, t: '1' }, 1],
    ],
  });
});

test('in other time zones and styles of output', async () => {
  const values = [
    "'2020-06-01 12:00:00+00'::timestamptz",
    "'1890-01-01 00:00:00+00'::timestamptz",
    "array['2020-06-01 12:00:00+00'::timestamptz]",
    "'1.123456789'::float8",
    "'\\x0102'::bytea",
    "'1 day 2 hours'::interval",
  ];
  for (const settings of [
    "set timezone = 'Asia/Kolkata'; ",
    "set timezone = 'America/St_Johns'; ",
    "set timezone = 'Europe/Amsterdam'; ",
    'set extra_float_digits = -5; ',
    "set bytea_output = 'escape'; ",
    "set intervalstyle = 'iso_8601'; ",
    'set standard_conforming_strings = on; ',
  ])
    await compare(values, settings);
});

test('random values', async () => {
  const text = fc
    .string({ unit: 'binary', maxLength: 40 })
    .map((s) => s.replaceAll('\0', '').toWellFormed());
  await fc.assert(
    fc.asyncProperty(
      fc.array(text, { minLength: 1, maxLength: 5 }),
      fc.array(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), {
        minLength: 1,
        maxLength: 5,
      }),
      fc.double(),
      fc.json(),
      async (texts, integers, double, json) => {
        const answer = await account.post(`/customer/databases/${id}/sql`, {
          query: `select v.*, to_json(v.t), to_json(v.i), to_json(v.p), to_json(v.d), to_json(v.ps)
                    from (select $1::text[] t, $2::int8[] i, row(7, $3::text)::pair p, $4::float8 d,
                                 array[row(8, $3::text)::pair, null] ps, $5::jsonb) v`,
          params: [
            texts,
            integers.map(String),
            texts[0],
            String(double),
            json.replaceAll('\\u0000', ''),
          ],
        });
        expect(answer.status).toBe(200);
        const [[t, i, p, d, ps, j, t2, i2, p2, d2, ps2]] = answer.body.rows;
        expect([t, i, p, d, ps]).toEqual([t2, i2, p2, d2, ps2]);
        expect(t).toEqual(texts);
        expect(p.b).toBe(texts[0]);
        expect(j).toEqual(JSON.parse(json.replaceAll('\\u0000', '')));
      },
    ),
    { numRuns: sizeOf('sql-values'), seed },
  );
});
