// What the type of a column means: its name as `format_type` gives it, and how its text becomes
// JSON. Types with a fixed OID are read once a server version. Types a customer made are looked up
// in the very session that returned them, after its rows: only there are they sure to be seen as
// the statement saw them (made in the same transaction, changed since the last call, named by this
// search_path), and there is no cache to go stale.
import type { Shape } from './values.ts';

export interface ColumnType {
  name: string;
  shape: Shape;
}

/** Asks the session; every value comes as text. */
export type Ask = (sql: string) => Promise<(string | null)[][]>;

/** OIDs below are assigned by hand in Postgres's sources and never change within a major version. */
const firstUnpinnedOid = 10_000;

const oids = {
  int2vector: 22,
  oidvector: 30,
  bpchar: 1042,
  varchar: 1043,
  time: 1083,
  timestamp: 1114,
  timestamptz: 1184,
  interval: 1186,
  timetz: 1266,
  bit: 1560,
  varbit: 1562,
  numeric: 1700,
  record: 2249,
  anyarray: 2277,
  recordArray: 2287,
} as const;

const scalarShapes = new Map<number, Shape>([
  [16, { kind: 'boolean' }],
  [20, { kind: 'number' }],
  [21, { kind: 'number' }],
  [23, { kind: 'number' }],
  [700, { kind: 'number' }],
  [701, { kind: 'number' }],
  [oids.numeric, { kind: 'number' }],
  [114, { kind: 'json' }],
  [3802, { kind: 'json' }],
  [oids.timestamp, { kind: 'timestamp' }],
  [oids.timestamptz, { kind: 'timestamptz' }],
  [oids.int2vector, { kind: 'vector', element: { kind: 'number' } }],
  [oids.oidvector, { kind: 'vector', element: { kind: 'text' } }],
]);
const textShape: Shape = { kind: 'text' };

/** Types whose text does not say what is in them: only the server can write them as JSON. */
export function isOpaque(oid: number): boolean {
  return oid === oids.record || oid === oids.recordArray || oid === oids.anyarray;
}

interface BuiltinType extends ColumnType {
  elementOid: number;
}
export type BuiltinTypes = ReadonlyMap<number, BuiltinType>;

export async function loadBuiltinTypes(ask: Ask): Promise<BuiltinTypes> {
  const rows = await ask(
    `select t.oid, pg_catalog.format_type(t.oid, -1), t.typdelim,
            case when t.typsubscript = 'pg_catalog.array_subscript_handler'::pg_catalog.regproc
                 then t.typelem else 0 end
       from pg_catalog.pg_type t
      where t.oid < ${firstUnpinnedOid} and t.typtype <> 'c'
        and (t.typelem = 0 or not exists
              (select from pg_catalog.pg_type e where e.oid = t.typelem and e.typtype = 'c'))`,
  );
  const types = new Map<number, BuiltinType>();
  for (const [oid, name, delimiter, element] of rows) {
    const elementOid = Number(element);
    const scalar = scalarShapes.get(Number(oid));
    const shape: Shape =
      scalar ??
      (elementOid && !isOpaque(Number(oid))
        ? {
            kind: 'array',
            element: scalarShapes.get(elementOid) ?? textShape,
            delimiter: delimiter!.charCodeAt(0),
          }
        : textShape);
    types.set(Number(oid), { name: name!, shape, elementOid: scalar ? 0 : elementOid });
  }
  return types;
}

/** The column's type if it can be told without asking, else undefined. */
export function builtinType(
  types: BuiltinTypes,
  oid: number,
  modifier: number,
): ColumnType | undefined {
  const type = types.get(oid);
  if (!type || modifier < 0) return type;
  const name = type.elementOid
    ? modifiedName(type.elementOid, modifier, '[]')
    : modifiedName(oid, modifier, '');
  return name === undefined ? undefined : { name, shape: type.shape };
}

/** `format_type` with a modifier, for the types that are common; undefined for the others. */
function modifiedName(oid: number, modifier: number, suffix: string): string | undefined {
  switch (oid) {
    case oids.varchar:
      return `character varying(${modifier - 4})${suffix}`;
    case oids.bpchar:
      return `character(${modifier - 4})${suffix}`;
    case oids.bit:
      return `bit(${modifier})${suffix}`;
    case oids.varbit:
      return `bit varying(${modifier})${suffix}`;
    case oids.numeric: {
      const precision = ((modifier - 4) >> 16) & 0xffff;
      const scale = (((modifier - 4) & 0x7ff) ^ 1024) - 1024;
      return `numeric(${precision},${scale})${suffix}`;
    }
    case oids.time:
      return `time(${modifier}) without time zone${suffix}`;
    case oids.timetz:
      return `time(${modifier}) with time zone${suffix}`;
    case oids.timestamp:
      return `timestamp(${modifier}) without time zone${suffix}`;
    case oids.timestamptz:
      return `timestamp(${modifier}) with time zone${suffix}`;
    default:
      return undefined;
  }
}

interface CatalogType {
  kind: string;
  elementOid: number;
  delimiter: number;
  baseOid: number;
  hasJsonCast: boolean;
  fields: { name: string; oid: number }[];
}

/** Looks the columns' types up in the session, with everything they are made of. */
export async function lookUpTypes(
  ask: Ask,
  builtins: BuiltinTypes,
  columns: readonly { oid: number; modifier: number }[],
): Promise<ColumnType[]> {
  const wanted = columns.map(({ oid }) => oid).join(',');
  const rows = await ask(
    `with recursive reached(oid) as (
       select pg_catalog.unnest('{${wanted}}'::pg_catalog.oid[])
       union
       select part.oid
         from reached r
         join pg_catalog.pg_type t on t.oid = r.oid
        cross join lateral (
          select t.typelem
           where t.typsubscript = 'pg_catalog.array_subscript_handler'::pg_catalog.regproc
          union all select t.typbasetype where t.typtype = 'd'
          union all
          select a.atttypid from pg_catalog.pg_attribute a
           where t.typrelid <> 0 and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
        ) part(oid)
     )
     select t.oid, t.typtype,
            case when t.typsubscript = 'pg_catalog.array_subscript_handler'::pg_catalog.regproc
                 then t.typelem else 0 end,
            t.typdelim, t.typbasetype,
            case when t.oid >= 16384 and exists
                   (select from pg_catalog.pg_cast c
                     where c.castsource = t.oid and c.casttarget = 114 and c.castmethod = 'f')
                 then 1 end,
            (select pg_catalog.json_agg(pg_catalog.json_build_array(a.attname, a.atttypid::int8)
                                        order by a.attnum)
               from pg_catalog.pg_attribute a
              where t.typrelid <> 0 and a.attrelid = t.typrelid
                and a.attnum > 0 and not a.attisdropped)
       from reached r join pg_catalog.pg_type t on t.oid = r.oid`,
  );
  const catalog = new Map<number, CatalogType>();
  for (const [oid, kind, element, delimiter, base, cast, fields] of rows)
    catalog.set(Number(oid), {
      kind: kind!,
      elementOid: Number(element),
      delimiter: delimiter!.charCodeAt(0),
      baseOid: Number(base),
      hasJsonCast: cast !== null,
      fields: fields
        ? (JSON.parse(fields) as [string, number][]).map(([name, type]) => ({ name, oid: type }))
        : [],
    });

  const listed = columns.map(({ oid, modifier }, index) => `(${index}, ${oid}, ${modifier})`);
  const names = await ask(
    `select pg_catalog.format_type(c.oid, c.modifier)
       from (values ${listed.join(', ')}) c(n, oid, modifier)
      order by c.n`,
  );
  return columns.map(({ oid }, index) => ({
    name: names[index]![0]!,
    shape: shapeOf(oid, catalog, builtins),
  }));
}

function shapeOf(
  oid: number,
  catalog: ReadonlyMap<number, CatalogType>,
  builtins: BuiltinTypes,
): Shape {
  const builtin = builtins.get(oid);
  if (builtin) return builtin.shape;
  const type = catalog.get(oid);
  if (!type) return textShape;
  if (type.kind === 'd') return shapeOf(type.baseOid, catalog, builtins);
  if (type.elementOid)
    return {
      kind: 'array',
      element: shapeOf(type.elementOid, catalog, builtins),
      delimiter: type.delimiter,
    };
  if (type.kind === 'c')
    return {
      kind: 'record',
      fields: type.fields.map((field) => ({
        key: Buffer.from(JSON.stringify(field.name)),
        shape: shapeOf(field.oid, catalog, builtins),
      })),
    };
  return type.hasJsonCast ? { kind: 'cast', typeOid: oid } : textShape;
}

/** A customer's own type counts as an array: a list means nothing else to the other kinds. */
export function isArrayType(types: BuiltinTypes, oid: number): boolean {
  const type = types.get(oid);
  return type ? type.elementOid !== 0 : oid >= firstUnpinnedOid;
}
