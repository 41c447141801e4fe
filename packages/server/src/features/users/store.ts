import type { Queryable } from '../../engine/metastore/metastore.ts';
import { quoteIdent, quoteLiteral } from '../../kernel/sql-quote.ts';

export interface User {
  name: string;
  is_superuser: boolean;
  can_login: boolean;
  can_create_db: boolean;
  can_create_role: boolean;
}

/** Every database has these; `admin` is shown, the others are the service's machinery. */
const ownRoles = ['postgres', 'readonly', 'anon', 'authenticated'];

export function isReserved(name: string): boolean {
  return (
    name === 'admin' ||
    ownRoles.includes(name) ||
    name === 'public' ||
    name === 'none' ||
    name.startsWith('pg_') ||
    name.startsWith('coppice')
  );
}

export async function listUsers(db: Queryable): Promise<User[]> {
  const { rows } = await db.query<User>(
    `select rolname as name, rolsuper as is_superuser, rolcanlogin as can_login,
            rolcreatedb as can_create_db, rolcreaterole as can_create_role
       from pg_roles
      where rolname !~ '^pg_' and rolname !~ '^coppice' and not rolname = any($1)
      order by rolname <> 'admin', rolname`,
    [ownRoles],
  );
  return rows;
}

export async function userExists(db: Queryable, name: string): Promise<boolean> {
  const { rows } = await db.query('select 1 from pg_roles where rolname = $1', [name]);
  return rows.length > 0;
}

export async function createUser(db: Queryable, name: string, verifier: string): Promise<void> {
  const role = quoteIdent(name);
  const { rows } = await db.query<{ version: number }>(
    `select current_setting('server_version_num')::int as version`,
  );
  const membership = rows[0]!.version >= 160_000 ? ', inherit true, set true' : '';
  // One message is one transaction.
  await db.query(
    `create role ${role} login password ${quoteLiteral(verifier)};
     grant ${role} to admin with admin option${membership};
     grant connect on database postgres to ${role}`,
  );
}

/** Databases besides this one where the role owns something or was granted something. */
export async function otherDatabasesOf(db: Queryable, name: string): Promise<string[]> {
  const { rows } = await db.query<{ datname: string }>(
    `select distinct d.datname
       from pg_shdepend s
       join pg_database d on d.oid = s.dbid
      where s.refclassid = 'pg_authid'::regclass
        and s.refobjid = (select oid from pg_roles where rolname = $1)
        and d.datallowconn and d.datname <> current_database()`,
    [name],
  );
  return rows.map((row) => row.datname);
}

export async function handOver(db: Queryable, name: string): Promise<void> {
  const role = quoteIdent(name);
  await db.query(`reassign owned by ${role} to admin; drop owned by ${role}`);
}

export async function deleteUser(db: Queryable, name: string): Promise<void> {
  const role = quoteIdent(name);
  await db.query(`reassign owned by ${role} to admin; drop owned by ${role}; drop role ${role}`);
  await db.query(
    `select pg_terminate_backend(pid) from pg_stat_activity
      where backend_type = 'client backend' and usesysid is not null
        and not exists (select from pg_roles r where r.oid = usesysid)`,
  );
}
