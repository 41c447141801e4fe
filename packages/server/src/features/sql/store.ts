import type { Queryable } from '../../engine/metastore/metastore.ts';

/** Roles that grants and policies of the database name, those of every database left out. */
export async function rolesOfGrants(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ rolname: string }>(
    `select distinct r.rolname
       from pg_shdepend d
       join pg_roles r on r.oid = d.refobjid
      where d.refclassid = 'pg_authid'::regclass and d.deptype in ('a', 'r', 'i')
        and d.dbid = (select oid from pg_database where datname = current_database())
        and r.rolname not in ('postgres', 'admin', 'readonly', 'anon', 'authenticated')
        and r.rolname !~ '^pg_'
      order by r.rolname`,
  );
  return rows.map((row) => row.rolname);
}
