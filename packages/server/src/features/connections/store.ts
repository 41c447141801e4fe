import type { Queryable } from '../../engine/metastore/metastore.ts';

export interface RoleSecret {
  rolpassword: string | null;
  rolcanlogin: boolean;
  rolsuper: boolean;
  expired: boolean;
}

/** What the server knows of a role's password. For superuser sessions only. */
export async function readRoleSecret(db: Queryable, role: string): Promise<RoleSecret | undefined> {
  const { rows } = await db.query<RoleSecret>(
    `select rolpassword, rolcanlogin, rolsuper,
            coalesce(rolvaliduntil < now(), false) as expired
       from pg_catalog.pg_authid where rolname = $1`,
    [role],
  );
  return rows[0];
}
