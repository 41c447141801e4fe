// Verifies the tokens that end users bring, against the auth-config of the database. Keys are kept
// for some minutes; a token with an unknown key makes them be fetched again, at most now and then.
import { createLocalJWKSet, errors, type JSONWebKeySet, type JWTPayload, jwtVerify } from 'jose';
import { unauthorized } from '../../kernel/app-error.ts';
import type { Clock } from '../../kernel/clock.ts';
import { asymmetricAlgorithms } from '../../kernel/signatures.ts';
import type { JwksSource } from './jwks-source.ts';
import type { AuthConfigRow, ByoJwt } from './store.ts';

export interface EndUser {
  subject: string;
  /** What the database may see: all claims, or those of the allowlist if there is one. */
  claims: JWTPayload;
}

export interface EndUserVerifier {
  /** Throws 401. */
  verify(databaseId: string, token: string): Promise<EndUser>;
}

interface KeptKeys {
  keys: Promise<JSONWebKeySet>;
  fetchedMs: number;
}

const keepMs = 10 * 60_000;
const refetchMs = 30_000;
const maxKept = 5_000;

export function createEndUserVerifier(deps: {
  configOf(databaseId: string): Promise<AuthConfigRow | undefined>;
  source: Pick<JwksSource, 'fetch'>;
  clock: Clock;
}): EndUserVerifier {
  const { source, clock } = deps;
  const kept = new Map<string, KeptKeys>();

  /** Keys no older than `maxAgeMs`; old ones serve on while the issuer cannot be reached. */
  async function keysOf(url: string, maxAgeMs: number): Promise<JSONWebKeySet> {
    const nowMs = clock.now().getTime();
    const known = kept.get(url);
    if (known && nowMs - known.fetchedMs < maxAgeMs) return known.keys;
    if (!known && kept.size >= maxKept) kept.delete(kept.keys().next().value!);
    const keys = source.fetch(url);
    kept.set(url, { keys, fetchedMs: nowMs });
    try {
      return await keys;
    } catch (error) {
      if (known) {
        kept.set(url, { keys: known.keys, fetchedMs: nowMs - keepMs + refetchMs });
        return known.keys;
      }
      kept.delete(url);
      throw unauthorized('the keys of the token issuer cannot be fetched', error);
    }
  }

  async function check(token: string, config: ByoJwt): Promise<JWTPayload> {
    const verifyWith = async (maxAgeMs: number) => {
      const keys = createLocalJWKSet(await keysOf(config.jwks_url, maxAgeMs));
      const { payload } = await jwtVerify(token, keys, {
        algorithms: asymmetricAlgorithms,
        currentDate: clock.now(),
        requiredClaims: ['exp', config.subject_claim],
        ...(config.audience === null ? {} : { audience: config.audience }),
        ...(config.issuer === null ? {} : { issuer: config.issuer }),
      });
      return payload;
    };
    try {
      return await verifyWith(keepMs);
    } catch (error) {
      // The issuer may have a new key.
      if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
      return verifyWith(refetchMs);
    }
  }

  return {
    async verify(databaseId, token) {
      const config = (await deps.configOf(databaseId))?.byo_jwt;
      if (!config) throw unauthorized('this database takes no tokens of end users');
      let claims: JWTPayload;
      try {
        claims = await check(token, config);
      } catch (error) {
        if (error instanceof errors.JOSEError)
          throw unauthorized('invalid or expired token', error);
        throw error;
      }
      const subject = claims[config.subject_claim];
      if (typeof subject !== 'string') throw unauthorized('the token names no subject');
      const shown = allowed(claims, config);
      if (Buffer.byteLength(JSON.stringify(shown)) > config.claims_max_bytes)
        throw unauthorized(`the claims of the token exceed ${config.claims_max_bytes} bytes`);
      return { subject, claims: shown };
    },
  };
}

/** The claims that make a token what it is are always shown. */
const standardClaims = ['iss', 'sub', 'aud', 'exp', 'iat'];

function allowed(claims: JWTPayload, config: ByoJwt): JWTPayload {
  if (config.claims_allowlist.length === 0) return claims;
  const names = new Set([...standardClaims, config.subject_claim, ...config.claims_allowlist]);
  return Object.fromEntries(Object.entries(claims).filter(([name]) => names.has(name)));
}
