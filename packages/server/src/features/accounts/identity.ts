// ID tokens of the identity providers that the service trusts, verified for real: signature
// through the provider's JWKS (found by discovery), issuer, audience, expiry.
import { createRemoteJWKSet, decodeJwt, errors, type JWTPayload, jwtVerify } from 'jose';
import { internal, unauthorized } from '../../kernel/app-error.ts';
import { asymmetricAlgorithms } from '../../kernel/signatures.ts';
import type { Identity } from './store.ts';

export interface TrustedIssuer {
  issuer: string;
  audience: string;
}

export interface IdentityVerifier {
  /** Throws 401. */
  verify(idToken: string): Promise<Identity>;
}

const timeoutMs = 5_000;

export function createIdentityVerifier(trusted: () => readonly TrustedIssuer[]): IdentityVerifier {
  const keySets = new Map<string, ReturnType<typeof createRemoteJWKSet>>();

  async function keySetOf(issuer: string) {
    let keySet = keySets.get(issuer);
    if (!keySet) {
      keySet = createRemoteJWKSet(await discoverJwks(issuer), { timeoutDuration: timeoutMs });
      keySets.set(issuer, keySet);
    }
    return keySet;
  }

  return {
    async verify(idToken) {
      let issuer: string | undefined;
      try {
        issuer = decodeJwt(idToken).iss;
      } catch (error) {
        throw unauthorized('id_token is not a JWT', error);
      }
      const candidates = trusted().filter((candidate) => candidate.issuer === issuer);
      if (candidates.length === 0)
        throw unauthorized('id_token is from an issuer not trusted here');
      const keySet = await keySetOf(candidates[0]!.issuer);
      try {
        const { payload } = await jwtVerify(idToken, keySet, {
          issuer: candidates[0]!.issuer,
          audience: candidates.map((candidate) => candidate.audience),
          algorithms: asymmetricAlgorithms,
          requiredClaims: ['sub', 'exp', 'iat'],
        });
        return identityOf(payload);
      } catch (error) {
        if (error instanceof errors.JWKSTimeout)
          throw internal('the identity provider does not answer', error);
        if (error instanceof errors.JOSEError) throw unauthorized('id_token is not valid', error);
        throw error;
      }
    },
  };
}

function identityOf(claims: JWTPayload): Identity {
  const { email } = claims;
  if (typeof email !== 'string' || email === '')
    throw unauthorized('id_token carries no e-mail address');
  if (claims.email_verified === false)
    throw unauthorized('the e-mail address of this id_token is not verified');
  return { issuer: claims.iss!, subject: claims.sub!, email };
}

async function discoverJwks(issuer: string): Promise<URL> {
  const url = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`;
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(timeoutMs) });
    const document = (await response.json()) as { issuer?: string; jwks_uri?: string };
    if (document.issuer !== issuer) throw new Error(`${url} is about issuer ${document.issuer}`);
    return new URL(document.jwks_uri ?? '');
  } catch (error) {
    throw internal('the identity provider cannot be reached', error);
  }
}
