// Fetches a customer's JWKS and keeps the keys that can verify signatures.
import { importJWK, type JSONWebKeySet, type JWK } from 'jose';
import { createGuardedFetch, FetchRefused } from '../../kernel/guarded-fetch.ts';
import { asymmetricAlgorithms } from '../../kernel/signatures.ts';

/** Why a JWKS cannot be used, in words for the customer. */
export class JwksUnusable extends Error {}

export interface JwksSource {
  /** The keys that can verify signatures; throws `JwksUnusable`. */
  fetch(url: string): Promise<JSONWebKeySet>;
  close(): Promise<void>;
}

const timeoutMs = 5_000;
const maxBytes = 256 * 1024;
/** RFC 7518: shorter ones verify nothing. */
const minRsaBits = 2048;
export function createJwksSource({ allowPrivate }: { allowPrivate: boolean }): JwksSource {
  const web = createGuardedFetch({
    allowPrivate,
    allowHttp: () => allowPrivate,
    timeoutMs,
    maxBytes,
  });
  return {
    async fetch(url) {
      try {
        const { bytes } = await web.fetch(url);
        return await usableKeys(bytes.toString('utf8'));
      } catch (error) {
        if (!(error instanceof FetchRefused)) throw error;
        throw new JwksUnusable(`jwks_url ${error.message}`, { cause: error });
      }
    },
    close: web.close,
  };
}

async function usableKeys(text: string): Promise<JSONWebKeySet> {
  let document: unknown;
  try {
    document = JSON.parse(text);
  } catch {
    throw new JwksUnusable('jwks_url does not answer JSON');
  }
  const listed = (document as { keys?: unknown } | null)?.keys;
  if (!Array.isArray(listed)) throw new JwksUnusable('jwks_url does not answer a JWKS document');
  const usable: JWK[] = [];
  for (const key of listed) if (await isUsable(key)) usable.push(key);
  if (usable.length === 0)
    throw new JwksUnusable('the JWKS document has no key that verifies signatures');
  return { keys: usable };
}

/** A public key for signatures that can be imported. */
async function isUsable(key: unknown): Promise<boolean> {
  if (typeof key !== 'object' || key === null) return false;
  const { kty, use, alg, crv, key_ops: operations } = key as JWK;
  if (kty === undefined || !['RSA', 'EC', 'OKP'].includes(kty)) return false;
  if (use !== undefined && use !== 'sig') return false;
  if (Array.isArray(operations) && !operations.includes('verify')) return false;
  const algorithm = alg ?? defaultAlgorithm(kty, crv);
  if (algorithm === undefined || !asymmetricAlgorithms.includes(algorithm)) return false;
  try {
    // Whatever a private part is doing there, only the public one is looked at.
    const { d: _, ...publicPart } = key as JWK;
    const imported = await importJWK(publicPart, algorithm);
    const { modulusLength } = (imported as CryptoKey).algorithm as { modulusLength?: number };
    return modulusLength === undefined || modulusLength >= minRsaBits;
  } catch {
    return false;
  }
}

function defaultAlgorithm(kty: string, crv: string | undefined): string | undefined {
  if (kty === 'RSA') return 'RS256';
  if (kty === 'OKP') return crv === 'Ed25519' ? 'EdDSA' : undefined;
  return { 'P-256': 'ES256', 'P-384': 'ES384', 'P-521': 'ES512' }[crv ?? ''];
}
