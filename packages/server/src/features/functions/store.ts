import type { Queryable } from '../../engine/metastore/metastore.ts';

export interface FunctionRow {
  id: string;
  name: string;
  enabled: boolean;
  visibility: 'public' | 'private';
  created_at: Date;
  updated_at: Date;
}

export interface VersionRow {
  id: string;
  function_id: string;
  database_id: string;
  version: number;
  entrypoint: string;
  bundle_ref: string;
  bundle_digest: string | null;
  code_digest: string | null;
  run_as: string;
  bypass_rls: boolean;
  timeout_ms: number;
  memory_mb: number;
  network_allowlist: string[];
  fs_read: string[];
  fs_write: string[];
  secret_bindings: string[];
  created_at: Date;
}

export interface CodeRow {
  digest: string;
  format: 'cjs' | 'esm';
  code: Buffer;
}

const functionColumns = 'id, name, enabled, visibility, created_at, updated_at';
const versionColumns = `v.id, v.function_id, v.database_id, v.version, v.entrypoint, v.bundle_ref,
  v.bundle_digest, v.code_digest, v.run_as, v.bypass_rls, v.timeout_ms, v.memory_mb,
  v.network_allowlist, v.fs_read, v.fs_write, v.secret_bindings, v.created_at`;

export async function listFunctions(db: Queryable, databaseId: string): Promise<FunctionRow[]> {
  const { rows } = await db.query<FunctionRow>(
    `select ${functionColumns} from functions where database_id = $1 order by created_at, name`,
    [databaseId],
  );
  return rows;
}

export async function countFunctions(db: Queryable, databaseId: string): Promise<number> {
  const { rows } = await db.query<{ count: number }>(
    'select count(*)::int as count from functions where database_id = $1',
    [databaseId],
  );
  return rows[0]!.count;
}

/** Deployments within one database take turns. */
export async function lockDeployments(tx: Queryable, databaseId: string): Promise<void> {
  await tx.query('select pg_advisory_xact_lock(hashtextextended($1, 7))', [databaseId]);
}

export async function findFunctionByName(
  db: Queryable,
  databaseId: string,
  name: string,
): Promise<{ id: string; visibility: string; latest: number } | undefined> {
  const { rows } = await db.query<{ id: string; visibility: string; latest: number }>(
    `select f.id, f.visibility, max(v.version) as latest
       from functions f join function_versions v on v.function_id = f.id
      where f.database_id = $1 and f.name = $2 group by f.id`,
    [databaseId, name],
  );
  return rows[0];
}

export interface FunctionChange {
  id: string;
  databaseId: string;
  name: string;
  visibility: 'public' | 'private';
  versionId: string;
  cronSchedule: string | null;
  nextTickAt: Date | null;
}

/** Creates the function, or routes it to its next version. */
export async function saveFunction(tx: Queryable, change: FunctionChange): Promise<FunctionRow> {
  const { rows } = await tx.query<FunctionRow>(
    `insert into functions (id, database_id, name, visibility, version_id, cron_schedule, next_tick_at)
     values ($1, $2, $3, $4, $5, $6, $7)
     on conflict (id) do update set visibility = excluded.visibility,
       version_id = excluded.version_id, cron_schedule = excluded.cron_schedule,
       next_tick_at = excluded.next_tick_at, updated_at = now()
     returning ${functionColumns}`,
    [
      change.id,
      change.databaseId,
      change.name,
      change.visibility,
      change.versionId,
      change.cronSchedule,
      change.nextTickAt,
    ],
  );
  return rows[0]!;
}

export async function insertVersion(
  tx: Queryable,
  version: Omit<VersionRow, 'created_at'>,
): Promise<VersionRow> {
  const columns = Object.keys(version);
  const { rows } = await tx.query<VersionRow>(
    `insert into function_versions (${columns.join(', ')})
     values (${columns.map((_, index) => `$${index + 1}`).join(', ')}) returning *`,
    Object.values(version),
  );
  return rows[0]!;
}

export async function saveCode(tx: Queryable, databaseId: string, code: CodeRow): Promise<void> {
  await tx.query(
    `insert into function_code (database_id, digest, format, code) values ($1, $2, $3, $4)
     on conflict do nothing`,
    [databaseId, code.digest, code.format, code.code],
  );
}

/** Forgets the code of versions before `oldestKept` of a function. */
export async function pruneCode(
  tx: Queryable,
  databaseId: string,
  functionId: string,
  oldestKept: number,
): Promise<void> {
  await tx.query(
    `update function_versions set code_digest = null
      where function_id = $1 and version < $2 and code_digest is not null`,
    [functionId, oldestKept],
  );
  await tx.query(
    `delete from function_code c where c.database_id = $1 and not exists (
       select from function_versions v
        where v.database_id = c.database_id and v.code_digest = c.digest)`,
    [databaseId],
  );
}

export interface CurrentFunction {
  name: string;
  enabled: boolean;
  visibility: 'public' | 'private';
  version: VersionRow;
}

/** A function and the version it is routed to. */
export async function findCurrent(
  db: Queryable,
  functionId: string,
): Promise<CurrentFunction | undefined> {
  const { rows } = await db.query<VersionRow & Omit<CurrentFunction, 'version'>>(
    `select f.name, f.enabled, f.visibility, ${versionColumns}
       from functions f join function_versions v on v.id = f.version_id where f.id = $1`,
    [functionId],
  );
  const row = rows[0];
  if (!row) return undefined;
  const { name, enabled, visibility, ...version } = row;
  return { name, enabled, visibility, version };
}

export async function findCode(
  db: Queryable,
  databaseId: string,
  digest: string,
): Promise<CodeRow | undefined> {
  const { rows } = await db.query<CodeRow>(
    'select digest, format, code from function_code where database_id = $1 and digest = $2',
    [databaseId, digest],
  );
  return rows[0];
}

/** The bundle of a version could be reached at last. */
export async function completeVersion(
  tx: Queryable,
  versionId: string,
  bundleDigest: string,
  codeDigest: string,
): Promise<void> {
  await tx.query(
    `update function_versions set bundle_digest = $2, code_digest = $3
      where id = $1 and code_digest is null`,
    [versionId, bundleDigest, codeDigest],
  );
}
