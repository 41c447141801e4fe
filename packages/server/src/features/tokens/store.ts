import type { Queryable } from '../../engine/metastore/metastore.ts';
import type { ScopeAccess } from '../../kernel/principal.ts';

export type StoredScope = Record<string, ScopeAccess>;

export interface TokenRow {
  id: string;
  name: string;
  created_at: Date;
  expires_at: Date;
}

export async function insertToken(
  db: Queryable,
  token: TokenRow & { accountKey: string; valueHash: Buffer; scope: StoredScope | null },
): Promise<void> {
  await db.query(
    `insert into tokens (id, account_key, name, value_hash, scope, created_at, expires_at)
     values ($1, $2, $3, $4, $5, $6, $7)`,
    [
      token.id,
      token.accountKey,
      token.name,
      token.valueHash,
      token.scope,
      token.created_at,
      token.expires_at,
    ],
  );
}

export async function listTokens(db: Queryable, accountKey: string): Promise<TokenRow[]> {
  const { rows } = await db.query<TokenRow>(
    `select id, name, expires_at, created_at from tokens
     where account_key = $1 order by created_at desc, id`,
    [accountKey],
  );
  return rows;
}

/** The hash of the value that was revoked, or undefined if this account has no such token. */
export async function deleteToken(
  db: Queryable,
  accountKey: string,
  id: string,
): Promise<Buffer | undefined> {
  const { rows } = await db.query<{ value_hash: Buffer }>(
    'delete from tokens where account_key = $1 and id = $2 returning value_hash',
    [accountKey, id],
  );
  return rows[0]?.value_hash;
}

export async function databasesOf(db: Queryable, accountKey: string): Promise<Set<string>> {
  const { rows } = await db.query<{ id: string }>(
    'select id from databases where account_key = $1',
    [accountKey],
  );
  return new Set(rows.map((row) => row.id));
}
