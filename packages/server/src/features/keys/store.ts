import type { Queryable } from '../../engine/metastore/metastore.ts';

export type KeyTable = 'connect_keys' | 'publishable_keys' | 'service_keys';

export interface NewRow {
  id: string;
  databaseId: string;
  name: string;
  valueHash: Buffer;
  createdAt: Date;
  expiresAt: Date | null;
}

export interface RateLimit {
  rps: number;
  burst: number;
}

interface KeyRow {
  id: string;
  name: string;
  created_at: Date;
  expires_at: Date | null;
}
export interface ConnectKeyRow extends KeyRow {
  role: string;
  scopes: string[];
}
export interface FoundConnectKey extends ConnectKeyRow {
  database_id: string;
  value_hash: Buffer;
}
export interface PublishableKeyRow extends KeyRow {
  allowed_origins: string[];
  exposed_schemas: string[];
  exposed_tables: string[];
  rate_limit: RateLimit | null;
}
export interface FoundPublishableKey extends PublishableKeyRow {
  database_id: string;
  value_hash: Buffer;
}

const connectColumns = 'id, name, role, scopes, created_at, expires_at';
const publishableColumns =
  'id, name, allowed_origins, exposed_schemas, exposed_tables, rate_limit, created_at, expires_at';
const serviceColumns = 'id, name, created_at, expires_at';

/** Whoever holds this is alone in counting the keys of the database, which cannot go meanwhile. */
export async function lockDatabase(tx: Queryable, databaseId: string): Promise<boolean> {
  const { rowCount } = await tx.query('select from databases where id = $1 and ready for update', [
    databaseId,
  ]);
  return rowCount === 1;
}

export async function countKeys(
  db: Queryable,
  table: KeyTable,
  databaseId: string,
): Promise<number> {
  const { rows } = await db.query<{ count: number }>(
    `select count(*)::int as count from ${table} where database_id = $1`,
    [databaseId],
  );
  return rows[0]!.count;
}

export async function deleteKey(
  db: Queryable,
  table: KeyTable,
  databaseId: string,
  id: string,
): Promise<boolean> {
  const { rowCount } = await db.query(`delete from ${table} where database_id = $1 and id = $2`, [
    databaseId,
    id,
  ]);
  return rowCount === 1;
}

const commonValues = (key: NewRow) => [
  key.id,
  key.databaseId,
  key.name,
  key.valueHash,
  key.createdAt,
  key.expiresAt,
];

export async function insertConnectKey(
  db: Queryable,
  key: NewRow,
  role: string,
  scopes: readonly string[],
): Promise<ConnectKeyRow> {
  const { rows } = await db.query<ConnectKeyRow>(
    `insert into connect_keys
       (id, database_id, name, value_hash, created_at, expires_at, role, scopes)
     values ($1, $2, $3, $4, $5, $6, $7, $8) returning ${connectColumns}`,
    [...commonValues(key), role, scopes],
  );
  return rows[0]!;
}

export async function listConnectKeys(db: Queryable, databaseId: string): Promise<ConnectKeyRow[]> {
  const { rows } = await db.query<ConnectKeyRow>(
    `select ${connectColumns} from connect_keys
      where database_id = $1 order by created_at desc, id`,
    [databaseId],
  );
  return rows;
}

export async function findConnectKey(
  db: Queryable,
  valueHash: Buffer,
): Promise<FoundConnectKey | undefined> {
  const { rows } = await db.query<FoundConnectKey>(
    `select ${connectColumns}, database_id, value_hash from connect_keys where value_hash = $1`,
    [valueHash],
  );
  return rows[0];
}

export async function livingConnectKeys(
  db: Queryable,
  ids: readonly string[],
): Promise<Set<string>> {
  const { rows } = await db.query<{ id: string }>(
    'select id from connect_keys where id = any($1)',
    [ids],
  );
  return new Set(rows.map(({ id }) => id));
}

export async function insertPublishableKey(
  db: Queryable,
  key: NewRow,
  options: {
    allowedOrigins: readonly string[];
    exposedSchemas: readonly string[];
    exposedTables: readonly string[];
    rateLimit: RateLimit | null;
  },
): Promise<PublishableKeyRow> {
  const { rows } = await db.query<PublishableKeyRow>(
    `insert into publishable_keys
       (id, database_id, name, value_hash, created_at, expires_at,
        allowed_origins, exposed_schemas, exposed_tables, rate_limit)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) returning ${publishableColumns}`,
    [
      ...commonValues(key),
      options.allowedOrigins,
      options.exposedSchemas,
      options.exposedTables,
      options.rateLimit,
    ],
  );
  return rows[0]!;
}

export async function listPublishableKeys(
  db: Queryable,
  databaseId: string,
): Promise<PublishableKeyRow[]> {
  const { rows } = await db.query<PublishableKeyRow>(
    `select ${publishableColumns} from publishable_keys
      where database_id = $1 order by created_at desc, id`,
    [databaseId],
  );
  return rows;
}

export async function findPublishableKey(
  db: Queryable,
  valueHash: Buffer,
): Promise<FoundPublishableKey | undefined> {
  const { rows } = await db.query<FoundPublishableKey>(
    `select ${publishableColumns}, database_id, value_hash
       from publishable_keys where value_hash = $1`,
    [valueHash],
  );
  return rows[0];
}

export async function insertServiceKey(db: Queryable, key: NewRow): Promise<KeyRow> {
  const { rows } = await db.query<KeyRow>(
    `insert into service_keys (id, database_id, name, value_hash, created_at, expires_at)
     values ($1, $2, $3, $4, $5, $6) returning ${serviceColumns}`,
    commonValues(key),
  );
  return rows[0]!;
}

export async function listServiceKeys(db: Queryable, databaseId: string): Promise<KeyRow[]> {
  const { rows } = await db.query<KeyRow>(
    `select ${serviceColumns} from service_keys
      where database_id = $1 order by created_at desc, id`,
    [databaseId],
  );
  return rows;
}
