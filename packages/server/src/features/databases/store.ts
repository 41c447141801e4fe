import type { Queryable } from '../../engine/metastore/metastore.ts';
import type { DatabaseRecord } from '../../kernel/database-record.ts';

const columns = `id, account_key as "accountKey", name, region, project_id as "projectId",
  parent_database_id as "parentDatabaseId", created_at as "createdAt"`;

export interface NewDatabase {
  id: string;
  accountKey: string;
  name: string;
  region: string;
  projectId: string | null;
  parentDatabaseId: string | null;
  home: string;
  sealedPassword: Buffer;
}

/** Holds off every other change to the account's set of databases until the transaction ends. */
export async function lockAccount(tx: Queryable, accountKey: string): Promise<void> {
  await tx.query('select from accounts where key = $1 for no key update', [accountKey]);
}

export async function countDatabases(db: Queryable, accountKey: string): Promise<number> {
  const { rows } = await db.query<{ count: number }>(
    'select count(*)::int as count from databases where account_key = $1',
    [accountKey],
  );
  return rows[0]!.count;
}

export type Reservation =
  | { outcome: 'reserved'; record: DatabaseRecord }
  | { outcome: 'name taken' | 'too many databases' | 'too many branches' };

/** Takes the name and a place in the quotas with a row that is not ready yet. */
export async function reserveDatabase(
  db: Queryable,
  database: NewDatabase,
  limits: { databases: number; branches: number },
): Promise<Reservation> {
  const { rows } = await db.query<DatabaseRecord & { outcome: Reservation['outcome'] }>(
    `select outcome, ${columns} from (
       select outcome, (reserved).*
       from reserve_database($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
     ) as reservation`,
    [
      database.id,
      database.accountKey,
      database.name,
      database.region,
      database.projectId,
      database.parentDatabaseId,
      database.home,
      database.sealedPassword,
      limits.databases,
      limits.branches,
    ],
  );
  const { outcome, ...record } = rows[0]!;
  return outcome === 'reserved' ? { outcome, record } : { outcome };
}

export async function setReady(db: Queryable, id: string, ready: boolean): Promise<boolean> {
  const { rowCount } = await db.query(
    'update databases set ready = $2 where id = $1 and ready <> $2',
    [id, ready],
  );
  return rowCount === 1;
}

export async function removeDatabase(db: Queryable, id: string): Promise<void> {
  await db.query('delete from databases where id = $1', [id]);
}

export async function findDatabase(db: Queryable, id: string): Promise<DatabaseRecord | undefined> {
  const { rows } = await db.query<DatabaseRecord>(
    `select ${columns} from databases where id = $1 and ready`,
    [id],
  );
  return rows[0];
}

export async function listDatabases(
  db: Queryable,
  accountKey: string,
  filter: { projectId?: string | undefined; ids?: string[] | undefined } = {},
): Promise<DatabaseRecord[]> {
  const { rows } = await db.query<DatabaseRecord>(
    `select ${columns} from databases
     where account_key = $1 and ready
       and ($2::text is null or project_id = $2)
       and ($3::text[] is null or id = any($3))
     order by created_at, id`,
    [accountKey, filter.projectId ?? null, filter.ids ?? null],
  );
  return rows;
}

export async function sealedPasswords(
  db: Queryable,
  id: string,
): Promise<{ current: Buffer; next: Buffer | null } | undefined> {
  const { rows } = await db.query<{ current: Buffer; next: Buffer | null }>(
    `select admin_password_sealed as current, next_admin_password_sealed as next
     from databases where id = $1`,
    [id],
  );
  return rows[0];
}

export async function beginPasswordReset(db: Queryable, id: string, sealed: Buffer): Promise<void> {
  await db.query('update databases set next_admin_password_sealed = $2 where id = $1', [
    id,
    sealed,
  ]);
}

export async function finishPasswordReset(db: Queryable, id: string): Promise<void> {
  await db.query(
    `update databases set admin_password_sealed = next_admin_password_sealed,
       next_admin_password_sealed = null
     where id = $1 and next_admin_password_sealed is not null`,
    [id],
  );
}

/** What a crash may have left: rows of databases half-made or half-deleted, resets half-done. */
export async function unfinished(
  db: Queryable,
  home: string,
): Promise<{ id: string; ready: boolean }[]> {
  const { rows } = await db.query<{ id: string; ready: boolean }>(
    `select id, ready from databases
     where home = $1 and (not ready or next_admin_password_sealed is not null)`,
    [home],
  );
  return rows;
}

export async function idsOfHome(db: Queryable, home: string): Promise<Set<string>> {
  const { rows } = await db.query<{ id: string }>(
    'select id from databases where home = $1 and ready',
    [home],
  );
  return new Set(rows.map((row) => row.id));
}

export async function moveDatabases(
  tx: Queryable,
  ids: string[],
  toAccountKey: string,
): Promise<void> {
  await tx.query('update databases set account_key = $2 where id = any($1)', [ids, toAccountKey]);
}
