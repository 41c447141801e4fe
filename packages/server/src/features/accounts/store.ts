import type { Queryable } from '../../engine/metastore/metastore.ts';

export interface AccountRow {
  key: string;
  id: string;
  anonymous_id: string | null;
  anonymous_secret_hash: Buffer | null;
  email: string | null;
  identity_issuer: string | null;
  created_at: Date;
}

export interface Identity {
  issuer: string;
  subject: string;
  email: string;
}

const columns = 'key, id, anonymous_id, anonymous_secret_hash, email, identity_issuer, created_at';

export async function insertAnonymous(
  db: Queryable,
  id: string,
  secretHash: Buffer,
): Promise<void> {
  await db.query(
    'insert into accounts (id, anonymous_id, anonymous_secret_hash) values ($1, $1, $2)',
    [id, secretHash],
  );
}

/** By its public id, or by the anonymous id that it began with. */
export async function findAccount(db: Queryable, id: string): Promise<AccountRow | undefined> {
  const { rows } = await db.query<AccountRow>(
    `select ${columns} from accounts where id = $1 or anonymous_id = $1`,
    [id],
  );
  return rows[0];
}

export async function findByIdentity(
  db: Queryable,
  { issuer, subject }: Identity,
): Promise<AccountRow | undefined> {
  const { rows } = await db.query<AccountRow>(
    `select ${columns} from accounts where identity_issuer = $1 and identity_subject = $2`,
    [issuer, subject],
  );
  return rows[0];
}

/** The account of a live API token, with what the token may do. */
export async function findByToken(
  db: Queryable,
  valueHash: Buffer,
): Promise<
  | (AccountRow & {
      token_id: string;
      token_scope: Record<string, 'ro' | 'rw'> | null;
      token_expires_at: Date;
    })
  | undefined
> {
  const { rows } = await db.query<
    AccountRow & {
      token_id: string;
      token_scope: Record<string, 'ro' | 'rw'> | null;
      token_expires_at: Date;
    }
  >(
    `select ${columns.replace(/(\w+)/g, 'a.$1')},
            t.id as token_id, t.scope as token_scope, t.expires_at as token_expires_at
     from tokens t join accounts a on a.key = t.account_key
     where t.value_hash = $1`,
    [valueHash],
  );
  return rows[0];
}

/** Answers false if the account is verified already. */
export async function claimAccount(
  db: Queryable,
  key: string,
  customerId: string,
  identity: Identity,
): Promise<boolean> {
  const { rowCount } = await db.query(
    `update accounts set id = $2, email = $3, identity_issuer = $4, identity_subject = $5
     where key = $1 and identity_issuer is null`,
    [key, customerId, identity.email, identity.issuer, identity.subject],
  );
  return rowCount === 1;
}

/** Makes the customer if the identity is new, and keeps its e-mail address up to date. */
export async function upsertVerified(
  db: Queryable,
  customerId: string,
  identity: Identity,
): Promise<{ id: string; email: string }> {
  const { rows } = await db.query<{ id: string; email: string }>(
    `insert into accounts (id, email, identity_issuer, identity_subject) values ($1, $2, $3, $4)
     on conflict (identity_issuer, identity_subject) do update set email = excluded.email
     returning id, email`,
    [customerId, identity.email, identity.issuer, identity.subject],
  );
  return rows[0]!;
}
