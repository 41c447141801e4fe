// The roles functions act as inside a database. A session is opened as the role itself, so that SQL
// of the tenant's has nothing to climb back to (`reset role` leads where it already is).
//
// Two kinds of roles of our own stand in where that is not possible, made on demand, named by the
// oid of the role they stand for, without a password and hidden from users:
//   coppice_as_<oid>      for a role that may not log in: a member of it, acting as it from the start
//   coppice_bypass_<oid>  for `bypass_rls`: a member of it that row-level security does not bind
import type { Sessions } from '../../engine/sessions.ts';
import { unprocessable } from '../../kernel/app-error.ts';
import { quoteIdent } from '../../kernel/sql-quote.ts';

export interface RunRoles {
  /** Throws a 422 unless functions may run as it. */
  check(databaseId: string, role: string): Promise<void>;
  /** The role to open a session as. */
  sessionRole(databaseId: string, role: string, bypassRls: boolean): Promise<string>;
  /** What a bypassing run created becomes its role's own. */
  handOver(databaseId: string, role: string): Promise<void>;
  forget(databaseId: string): void;
}

interface RoleRow {
  oid: string;
  rolcanlogin: boolean;
}

const isOurs = (role: string) => role === 'postgres' || /^(pg_|coppice)/.test(role);

export function createRunRoles(deps: { sessions: Sessions }): RunRoles {
  const known = new Map<string, Map<string, string>>();

  async function find(databaseId: string, role: string): Promise<RoleRow | undefined> {
    if (isOurs(role)) return undefined;
    return deps.sessions.use(databaseId, { role: 'postgres' }, async (client) => {
      const { rows } = await client.query<RoleRow>(
        'select oid::text, rolcanlogin from pg_catalog.pg_roles where rolname = $1 and not rolsuper',
        [role],
      );
      return rows[0];
    });
  }

  /** `made`: the one that is known to be there. */
  async function standIn(
    databaseId: string,
    role: string,
    bypassRls: boolean,
    made: string | undefined,
  ): Promise<string> {
    const found = await find(databaseId, role);
    if (!found) throw new Error(`role "${role}" does not exist`);
    if (!bypassRls && found.rolcanlogin) return role;
    const name = `coppice_${bypassRls ? 'bypass' : 'as'}_${found.oid}`;
    if (name === made) return name;
    const [own, target] = [quoteIdent(name), quoteIdent(role)];
    await deps.sessions.use(databaseId, { role: 'postgres' }, async (client) => {
      await client.query('begin');
      await client.query("select pg_advisory_xact_lock(hashtextextended('coppice run roles', 0))");
      const { rows } = await client.query('select from pg_catalog.pg_roles where rolname = $1', [
        name,
      ]);
      if (rows.length === 0) {
        await client.query(`create role ${own} login inherit ${bypassRls ? 'bypassrls' : ''}`);
        await client.query(`grant ${target} to ${own}`);
        if (!bypassRls) await client.query(`alter role ${own} set role = ${target}`);
      }
      await client.query('commit');
    });
    return name;
  }

  return {
    async check(databaseId, role) {
      if (!(await find(databaseId, role)))
        throw unprocessable(`run_as: role "${role}" does not exist or cannot be used`);
    },
    async sessionRole(databaseId, role, bypassRls) {
      const key = `${bypassRls}/${role}`;
      const roles = known.get(databaseId) ?? new Map<string, string>();
      const cached = roles.get(key);
      if (cached === role) return role;
      // A stand-in outlives its role: see that it is still the one for the role of this name.
      const name = await standIn(databaseId, role, bypassRls, cached);
      roles.set(key, name);
      known.set(databaseId, roles);
      return name;
    },
    async handOver(databaseId, role) {
      const own = known.get(databaseId)?.get(`true/${role}`);
      if (own === undefined) return;
      await deps.sessions.use(databaseId, { role: 'postgres' }, async (client) => {
        const { rows } = await client.query(
          `select from pg_catalog.pg_shdepend d join pg_catalog.pg_roles r on r.oid = d.refobjid
            where d.refclassid = 'pg_catalog.pg_authid'::regclass and d.deptype = 'o'
              and r.rolname = $1 limit 1`,
          [own],
        );
        if (rows.length > 0)
          await client.query(`reassign owned by ${quoteIdent(own)} to ${quoteIdent(role)}`);
      });
    },
    forget: (databaseId) => void known.delete(databaseId),
  };
}
