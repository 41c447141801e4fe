// Tokens that the service signs itself: sessions and connect tokens. The keys are asymmetric, so
// that anyone can check a token against /.well-known/jwks.json; they live sealed in the control
// database, so that every process that shares it accepts every other's tokens.
import {
  calculateJwkThumbprint,
  createLocalJWKSet,
  exportJWK,
  generateKeyPair,
  importJWK,
  type JSONWebKeySet,
  type JWK,
  type JWTPayload,
  jwtVerify,
  SignJWT,
} from 'jose';
import type { Metastore } from '../../engine/metastore/metastore.ts';
import { unauthorized } from '../../kernel/app-error.ts';
import type { Clock } from '../../kernel/clock.ts';
import type { Secretbox } from '../../kernel/secretbox.ts';

export type Audience = 'session' | 'connect';

export interface TokenSigner {
  sign(
    claims: JWTPayload,
    options: { audience: Audience; expiresInSeconds: number },
  ): Promise<{ token: string; expiresAt: Date }>;
  /** Throws 401. */
  verify(token: string, options: { audience: Audience }): Promise<JWTPayload>;
  jwks(): JSONWebKeySet;
}

const algorithm = 'ES256';
const issuer = 'coppice';
const sealContext = (keyId: string) => `signing-key/${keyId}`;

export async function createTokenSigner(deps: {
  metastore: Metastore;
  secretbox: Secretbox;
  clock: Clock;
}): Promise<TokenSigner> {
  const { metastore, secretbox, clock } = deps;
  const keys = await loadKeys(metastore, secretbox);
  const newest = keys[0]!;
  const privateKey = await importJWK(
    JSON.parse(secretbox.open(newest.private_jwk_sealed, sealContext(newest.id))) as JWK,
    algorithm,
  );
  const jwks: JSONWebKeySet = { keys: keys.map((key) => key.public_jwk) };
  const keySet = createLocalJWKSet(jwks);

  return {
    jwks: () => jwks,
    async sign(claims, { audience, expiresInSeconds }) {
      const issuedAt = Math.floor(clock.now().getTime() / 1000);
      const expiresAt = issuedAt + expiresInSeconds;
      const token = await new SignJWT(claims)
        .setProtectedHeader({ alg: algorithm, kid: newest.id, typ: 'JWT' })
        .setIssuer(issuer)
        .setAudience(audience)
        .setIssuedAt(issuedAt)
        .setExpirationTime(expiresAt)
        .sign(privateKey);
      return { token, expiresAt: new Date(expiresAt * 1000) };
    },
    async verify(token, { audience }) {
      try {
        const { payload } = await jwtVerify(token, keySet, {
          issuer,
          audience,
          algorithms: [algorithm],
          currentDate: clock.now(),
          requiredClaims: ['exp', 'sub'],
        });
        return payload;
      } catch (error) {
        throw unauthorized(undefined, error);
      }
    },
  };
}

interface KeyRow {
  id: string;
  public_jwk: JWK;
  private_jwk_sealed: Buffer;
}

/** All keys, newest first; makes the first one. Processes that start together take turns. */
function loadKeys(metastore: Metastore, secretbox: Secretbox): Promise<KeyRow[]> {
  return metastore.transaction(async (tx) => {
    await tx.query('lock table signing_keys in exclusive mode');
    const select =
      'select id, public_jwk, private_jwk_sealed from signing_keys order by created_at desc';
    const { rows } = await tx.query<KeyRow>(select);
    if (rows.length > 0) return rows;

    const pair = await generateKeyPair(algorithm, { extractable: true });
    const publicJwk = await exportJWK(pair.publicKey);
    const id = await calculateJwkThumbprint(publicJwk);
    const privateJwk = JSON.stringify(await exportJWK(pair.privateKey));
    await tx.query(
      'insert into signing_keys (id, public_jwk, private_jwk_sealed) values ($1, $2, $3)',
      [
        id,
        { ...publicJwk, kid: id, alg: algorithm, use: 'sig' },
        secretbox.seal(privateJwk, sealContext(id)),
      ],
    );
    return (await tx.query<KeyRow>(select)).rows;
  });
}
