import type { Metastore } from '../../engine/metastore/metastore.ts';
import type { TrustedCache } from '../../engine/metastore/trusted-cache.ts';
import { notFound, unprocessable } from '../../kernel/app-error.ts';
import { type JwksSource, JwksUnusable } from './jwks-source.ts';
import * as store from './store.ts';

export interface WantedAuthConfig {
  auth_mode?: string | undefined;
  byo_jwt?: (Pick<store.ByoJwt, 'jwks_url'> & Partial<store.ByoJwt>) | undefined;
}

export type AuthConfigService = ReturnType<typeof createAuthConfigService>;

const onlyMode = 'byo_jwt';

export function createAuthConfigService(deps: {
  metastore: Metastore;
  source: JwksSource;
  cache: TrustedCache<store.AuthConfigRow | undefined>;
}) {
  const { metastore, cache } = deps;
  const read = (databaseId: string) => store.findAuthConfig(metastore, databaseId);

  return {
    async get(databaseId: string) {
      const config = await read(databaseId);
      return config ?? { auth_mode: onlyMode, byo_jwt: null, created_at: null, updated_at: null };
    },

    /** For the data plane, which asks at each request. */
    find: async (databaseId: string) =>
      cache.get(databaseId) ?? cache.load(databaseId, () => read(databaseId)),

    /** `byo_jwt` is replaced as a whole; left out, it stays. Nothing changes if it cannot work. */
    async put(databaseId: string, wanted: WantedAuthConfig) {
      if (wanted.auth_mode !== undefined && wanted.auth_mode !== onlyMode)
        throw unprocessable(`auth_mode must be "${onlyMode}"`);
      const byoJwt = wanted.byo_jwt && fillDefaults(wanted.byo_jwt);
      if (byoJwt) await checkJwks(byoJwt.jwks_url);
      const saved = await store.saveAuthConfig(metastore, databaseId, onlyMode, byoJwt);
      if (!saved) throw notFound('database');
      cache.forget(databaseId);
      return saved;
    },
  };

  async function checkJwks(url: string): Promise<void> {
    try {
      await deps.source.fetch(url);
    } catch (error) {
      if (error instanceof JwksUnusable) throw unprocessable(error.message, error);
      throw error;
    }
  }
}

function fillDefaults(given: NonNullable<WantedAuthConfig['byo_jwt']>): store.ByoJwt {
  return {
    jwks_url: given.jwks_url,
    audience: given.audience ?? null,
    issuer: given.issuer ?? null,
    subject_claim: given.subject_claim ?? 'sub',
    claims_allowlist: given.claims_allowlist ?? [],
    claims_max_bytes: given.claims_max_bytes ?? 4096,
  };
}
