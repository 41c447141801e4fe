import type { Queryable } from '../../engine/metastore/metastore.ts';

export async function listSecrets(db: Queryable, databaseId: string) {
  const { rows } = await db.query<{ name: string; created_at: Date; updated_at: Date }>(
    `select name, created_at, valid_from as updated_at from secret_values
      where database_id = $1 and valid_until is null order by name`,
    [databaseId],
  );
  return rows;
}

export async function countSecrets(db: Queryable, databaseId: string): Promise<number> {
  const { rows } = await db.query<{ count: number }>(
    `select count(*)::int as count from secret_values
      where database_id = $1 and valid_until is null`,
    [databaseId],
  );
  return rows[0]!.count;
}

/** Undefined if there is one of that name. */
export async function insertSecret(
  db: Queryable,
  databaseId: string,
  name: string,
  sealed: Buffer,
): Promise<{ name: string; created_at: Date } | undefined> {
  const { rows } = await db.query<{ name: string; created_at: Date }>(
    `insert into secret_values (database_id, name, value_sealed, created_at)
     values ($1, $2, $3, clock_timestamp())
     on conflict (database_id, name) where valid_until is null do nothing
     returning name, created_at`,
    [databaseId, name, sealed],
  );
  return rows[0];
}

export async function insertValue(
  tx: Queryable,
  databaseId: string,
  name: string,
  sealed: Buffer,
  createdAt: Date,
): Promise<{ name: string; updated_at: Date }> {
  const { rows } = await tx.query<{ name: string; updated_at: Date }>(
    `insert into secret_values (database_id, name, value_sealed, created_at)
     values ($1, $2, $3, $4) returning name, valid_from as updated_at`,
    [databaseId, name, sealed, createdAt],
  );
  return rows[0]!;
}

/** Those who change one secret take turns, each seeing what the one before left. */
export async function lockSecret(tx: Queryable, databaseId: string, name: string): Promise<void> {
  await tx.query('select pg_advisory_xact_lock(hashtextextended($1, 6))', [
    `secret/${databaseId}/${name}`,
  ]);
}

/** Ends the current value; gives when the secret was created, or undefined if there is none. */
export async function supersedeSecret(
  tx: Queryable,
  databaseId: string,
  name: string,
): Promise<Date | undefined> {
  const { rows } = await tx.query<{ created_at: Date }>(
    `update secret_values set valid_until = clock_timestamp()
      where database_id = $1 and name = $2 and valid_until is null returning created_at`,
    [databaseId, name],
  );
  return rows[0]?.created_at;
}

interface SealedValue {
  name: string;
  value_sealed: Buffer;
  created_at: Date;
}

export async function currentValues(
  db: Queryable,
  databaseId: string,
  names: readonly string[],
): Promise<SealedValue[]> {
  const { rows } = await db.query<SealedValue>(
    `select name, value_sealed, created_at from secret_values
      where database_id = $1 and name = any ($2) and valid_until is null`,
    [databaseId, names],
  );
  return rows;
}

/** The values of an instant; null: the current ones. */
export async function valuesAt(
  tx: Queryable,
  databaseId: string,
  at: Date | null,
): Promise<SealedValue[]> {
  const { rows } = await tx.query<SealedValue>(
    `select name, value_sealed, created_at from secret_values
      where database_id = $1
        and case when $2::timestamptz is null then valid_until is null
            else valid_from <= $2 and (valid_until is null or valid_until > $2) end`,
    [databaseId, at],
  );
  return rows;
}

export async function deleteSuperseded(db: Queryable, horizon: Date): Promise<void> {
  await db.query('delete from secret_values where valid_until < $1', [horizon]);
}
