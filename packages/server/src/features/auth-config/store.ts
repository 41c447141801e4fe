import type { Queryable } from '../../engine/metastore/metastore.ts';

export interface ByoJwt {
  jwks_url: string;
  audience: string | null;
  issuer: string | null;
  subject_claim: string;
  claims_allowlist: string[];
  claims_max_bytes: number;
}

export interface AuthConfigRow {
  auth_mode: string;
  byo_jwt: ByoJwt | null;
  created_at: Date;
  updated_at: Date;
}

const columns = 'auth_mode, byo_jwt, created_at, updated_at';

export async function findAuthConfig(
  db: Queryable,
  databaseId: string,
): Promise<AuthConfigRow | undefined> {
  const { rows } = await db.query<AuthConfigRow>(
    `select ${columns} from auth_configs where database_id = $1`,
    [databaseId],
  );
  return rows[0];
}

/** Undefined if the database is gone. Without `byoJwt` the stored one stays. */
export async function saveAuthConfig(
  db: Queryable,
  databaseId: string,
  authMode: string,
  byoJwt: ByoJwt | undefined,
): Promise<AuthConfigRow | undefined> {
  const { rows } = await db.query<AuthConfigRow>(
    `insert into auth_configs (database_id, auth_mode, byo_jwt)
     select id, $2, $3::jsonb from databases where id = $1 and ready
     on conflict (database_id) do update
       set auth_mode = excluded.auth_mode,
           byo_jwt = coalesce(excluded.byo_jwt, auth_configs.byo_jwt),
           updated_at = clock_timestamp()
     returning ${columns}`,
    [databaseId, authMode, byoJwt ?? null],
  );
  return rows[0];
}
