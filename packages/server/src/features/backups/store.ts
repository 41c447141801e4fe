import type { Queryable } from '../../engine/metastore/metastore.ts';

export interface BackupRow {
  id: string;
  database_id: string;
  state: 'creating' | 'ready' | 'failed';
  label: string | null;
  size_bytes: number | null;
  created_at: Date;
  completed_at: Date | null;
  error: string | null;
}

export interface RestoreRow {
  id: string;
  backup_id: string;
  target_name: string;
  database_id: string | null;
  state: 'restoring' | 'ready' | 'failed';
  created_at: Date;
  completed_at: Date | null;
  error: string | null;
}

const backupColumns = `id, database_id, state, label, size_bytes::float8 as size_bytes, created_at,
  completed_at, error`;
const restoreColumns =
  'id, backup_id, target_name, database_id, state, created_at, completed_at, error';

export async function insertBackup(
  tx: Queryable,
  backup: {
    id: string;
    databaseId: string;
    home: string;
    label: string | null;
    scheduled: boolean;
  },
): Promise<BackupRow> {
  const { rows } = await tx.query<BackupRow>(
    `insert into backups (id, database_id, home, label, scheduled) values ($1, $2, $3, $4, $5)
     returning ${backupColumns}`,
    [backup.id, backup.databaseId, backup.home, backup.label, backup.scheduled],
  );
  return rows[0]!;
}

export async function listBackups(db: Queryable, databaseId: string): Promise<BackupRow[]> {
  const { rows } = await db.query<BackupRow>(
    `select ${backupColumns} from backups where database_id = $1 order by created_at desc, id desc`,
    [databaseId],
  );
  return rows;
}

export async function findBackup(
  db: Queryable,
  databaseId: string,
  id: string,
): Promise<BackupRow | undefined> {
  const { rows } = await db.query<BackupRow>(
    `select ${backupColumns} from backups where database_id = $1 and id = $2`,
    [databaseId, id],
  );
  return rows[0];
}

export async function deleteBackup(
  db: Queryable,
  databaseId: string,
  id: string,
): Promise<boolean> {
  const { rowCount } = await db.query('delete from backups where database_id = $1 and id = $2', [
    databaseId,
    id,
  ]);
  return rowCount === 1;
}

/** What a backup says of itself, so that it can be told apart without the control database. */
export interface BackupSubject {
  id: string;
  state: BackupRow['state'];
  databaseId: string;
  databaseName: string;
  region: string;
  customerId: string;
  label: string | null;
  createdAt: Date;
}

export async function findSubject(db: Queryable, id: string): Promise<BackupSubject | undefined> {
  const { rows } = await db.query<BackupSubject>(
    `select b.id, b.state, d.id as "databaseId", d.name as "databaseName", d.region,
            a.id as "customerId", b.label, b.created_at as "createdAt"
     from backups b join databases d on d.id = b.database_id and d.ready
                    join accounts a on a.key = d.account_key
     where b.id = $1`,
    [id],
  );
  return rows[0];
}

/** Answers whether the backup is still wanted. */
export async function finishBackup(
  db: Queryable,
  id: string,
  result: { sizeBytes: number; sha256: string } | { error: string },
): Promise<boolean> {
  const values =
    'error' in result
      ? ['failed', null, null, result.error]
      : ['ready', result.sizeBytes, result.sha256, null];
  const { rowCount } = await db.query(
    `update backups set state = $2, size_bytes = $3, sha256 = $4, error = $5,
       completed_at = now()
     where id = $1 and state = 'creating'`,
    [id, ...values],
  );
  return rowCount === 1;
}

/** A backup of one of the account's databases. */
export async function findBackupOfAccount(
  db: Queryable,
  accountKey: string,
  id: string,
): Promise<(BackupRow & { home: string }) | undefined> {
  const { rows } = await db.query<BackupRow & { home: string }>(
    `select b.id, b.state, b.home from backups b join databases d on d.id = b.database_id
     where d.account_key = $1 and d.ready and b.id = $2`,
    [accountKey, id],
  );
  return rows[0];
}

/** The digest that the stored object must have. */
export async function digestOf(db: Queryable, id: string): Promise<string | undefined> {
  const { rows } = await db.query<{ sha256: string }>(
    `select sha256 from backups where id = $1 and state = 'ready'`,
    [id],
  );
  return rows[0]?.sha256;
}

export async function lockAccount(tx: Queryable, accountKey: string): Promise<void> {
  await tx.query('select from accounts where key = $1 for no key update', [accountKey]);
}

export async function isNameTaken(
  tx: Queryable,
  accountKey: string,
  name: string,
): Promise<boolean> {
  const { rows } = await tx.query(
    `select from databases where account_key = $1 and name = $2
     union all
     select from restores where account_key = $1 and target_name = $2 and state = 'restoring'`,
    [accountKey, name],
  );
  return rows.length > 0;
}

/** Databases of the account, those that are being restored included. */
export async function countDatabases(tx: Queryable, accountKey: string): Promise<number> {
  const { rows } = await tx.query<{ count: number }>(
    `select (select count(*) from databases where account_key = $1)::int
          + (select count(*) from restores r where r.account_key = $1 and r.state = 'restoring'
               and not exists (select from databases d
                               where d.account_key = $1 and d.name = r.target_name))::int as count`,
    [accountKey],
  );
  return rows[0]!.count;
}

export async function insertRestore(
  tx: Queryable,
  restore: {
    id: string;
    accountKey: string;
    backupId: string;
    targetName: string;
    idempotencyKey: string | null;
  },
): Promise<RestoreRow> {
  const { rows } = await tx.query<RestoreRow>(
    `insert into restores (id, account_key, backup_id, target_name, idempotency_key)
     values ($1, $2, $3, $4, $5) returning ${restoreColumns}`,
    [restore.id, restore.accountKey, restore.backupId, restore.targetName, restore.idempotencyKey],
  );
  return rows[0]!;
}

export async function findRestore(
  db: Queryable,
  accountKey: string,
  by: { id: string } | { idempotencyKey: string },
): Promise<RestoreRow | undefined> {
  const [column, value] = 'id' in by ? ['id', by.id] : ['idempotency_key', by.idempotencyKey];
  const { rows } = await db.query<RestoreRow>(
    `select ${restoreColumns} from restores where account_key = $1 and ${column} = $2`,
    [accountKey, value],
  );
  return rows[0];
}

export interface RestoreTask {
  backupId: string;
  targetName: string;
  accountKey: string;
  isAnonymous: boolean;
}

/** A restore that is still to be done. */
export async function findRestoreTask(db: Queryable, id: string): Promise<RestoreTask | undefined> {
  const { rows } = await db.query<RestoreTask>(
    `select r.backup_id as "backupId", r.target_name as "targetName",
            a.key as "accountKey", a.identity_issuer is null as "isAnonymous"
     from restores r join accounts a on a.key = r.account_key
     where r.id = $1 and r.state = 'restoring'`,
    [id],
  );
  return rows[0];
}

export async function finishRestore(
  db: Queryable,
  id: string,
  result: { databaseId: string } | { error: string },
): Promise<boolean> {
  const [state, databaseId, error] =
    'error' in result ? ['failed', null, result.error] : ['ready', result.databaseId, null];
  const { rowCount } = await db.query(
    `update restores set state = $2, database_id = $3, error = $4, completed_at = now()
     where id = $1 and state = 'restoring'`,
    [id, state, databaseId, error],
  );
  return rowCount === 1;
}

/** Databases of this process that the schedule is to back up. */
export async function databasesOf(db: Queryable, home: string): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>(
    `select id from databases d where home = $1 and ready
       and not exists (select from backups b
                       where b.database_id = d.id and b.scheduled and b.state = 'creating')
     order by id`,
    [home],
  );
  return rows.map(({ id }) => id);
}

/** Removes scheduled backups from before `horizon`, but never a database's newest good one. */
export async function deleteExpired(db: Queryable, home: string, horizon: Date): Promise<number> {
  const { rowCount } = await db.query(
    `delete from backups b where home = $1 and scheduled and created_at < $2
       and state <> 'creating'
       and exists (select from backups newer
                   where newer.database_id = b.database_id and newer.state = 'ready'
                     and newer.created_at > b.created_at)`,
    [home, horizon],
  );
  return rowCount ?? 0;
}
