import type { Queryable } from '../../engine/metastore/metastore.ts';

/**
 * The answer's JSON, made by Postgres in one pass over its catalogue. Types in `public` are named as
 * the customer names them; the session itself has an empty search_path.
 */
export async function describeSchema(db: Queryable): Promise<string> {
  const { rows } = await db.query<{ json: string }>(
    `with relations as materialized (
       select c.oid, n.nspname, c.relname, c.relkind
         from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.relkind in ('r', 'p', 'f', 'v', 'm')
          and n.nspname not in ('pg_catalog', 'information_schema', 'coppice', 'fs', 'auth')
          and n.nspname !~ '^pg_(toast|temp)'
     ), tables as (
       select r.nspname, r.relname,
              coalesce(json_agg(json_build_object(
                  'name', a.attname,
                  'type', regexp_replace(format_type(a.atttypid, a.atttypmod), '^public.', ''),
                  'nullable', not (a.attnotnull or t.typtype = 'd' and t.typnotnull)
                ) order by a.attnum) filter (where a.attnum is not null), '[]') as columns
         from relations r
         left join (pg_attribute a join pg_type t on t.oid = a.atttypid)
           on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
        where r.relkind in ('r', 'p', 'f')
        group by r.oid, r.nspname, r.relname
     )
     select json_build_object(
       'tables', coalesce((select json_agg(json_build_object(
           'schema', nspname, 'name', relname, 'columns', columns) order by nspname, relname)
         from tables), '[]'),
       'views', coalesce((select json_agg(json_build_object(
           'name', relname, 'schema', nspname) order by nspname, relname)
         from relations where relkind in ('v', 'm')), '[]')
     )::text as json`,
  );
  return rows[0]!.json;
}
