// Fetches a customer's JWKS. The address is the customer's choice, so the service must not be led
// anywhere it would not go by itself: each hop is checked, a name is looked up once and that address
// is the one connected to, and time and size are bounded.
import { lookup } from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';
import { importJWK, type JSONWebKeySet, type JWK } from 'jose';
import { Agent, request } from 'undici';
import { isPublicAddress } from '../../kernel/public-address.ts';

/** Why a JWKS cannot be used, in words for the customer. */
export class JwksUnusable extends Error {}

export interface JwksSource {
  /** The keys that can verify signatures; throws `JwksUnusable`. */
  fetch(url: string): Promise<JSONWebKeySet>;
  close(): Promise<void>;
}

const timeoutMs = 5_000;
const connectTimeoutMs = 3_000;
const maxBytes = 256 * 1024;
const maxRedirects = 3;
/** RFC 7518: shorter ones verify nothing. */
const minRsaBits = 2048;
/** Only these: a symmetric key in a public document verifies nothing. */
export const algorithms = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
];

export function createJwksSource({ allowPrivate }: { allowPrivate: boolean }): JwksSource {
  const agent = new Agent({
    connect: {
      timeout: connectTimeoutMs,
      ...(allowPrivate ? {} : { lookup: lookUpPublic }),
    },
  });

  function check(url: URL): void {
    if (url.username !== '' || url.password !== '')
      throw new JwksUnusable('jwks_url must not contain credentials');
    const isHttp = url.protocol === 'http:';
    if (url.protocol !== 'https:' && !(isHttp && allowPrivate))
      throw new JwksUnusable('jwks_url must be an https:// URL');
    // Names are checked when they are looked up.
    const host = url.hostname.replace(/^\[|\]$/g, '');
    if (isIP(host) !== 0 && !allowPrivate && !isPublicAddress(host))
      throw new JwksUnusable('jwks_url must lead to a public address');
  }

  async function download(text: string): Promise<string> {
    if (!URL.canParse(text)) throw new JwksUnusable('jwks_url is not a valid URL');
    let url = new URL(text);
    const signal = AbortSignal.timeout(timeoutMs);
    for (let hop = 0; hop <= maxRedirects; hop++) {
      check(url);
      const { statusCode, headers, body } = await request(url, {
        dispatcher: agent,
        signal,
        headers: { accept: 'application/json' },
      });
      try {
        const { location } = headers;
        if (statusCode >= 300 && statusCode < 400 && typeof location === 'string') {
          if (!URL.canParse(location, url))
            throw new JwksUnusable('jwks_url redirects to no valid URL');
          url = new URL(location, url);
          continue;
        }
        if (statusCode !== 200) throw new JwksUnusable(`jwks_url answered status ${statusCode}`);
        return await readLimited(body);
      } finally {
        body.on('error', () => {}).destroy();
      }
    }
    throw new JwksUnusable('jwks_url redirects too often');
  }

  return {
    async fetch(url) {
      let text: string;
      try {
        text = await download(url);
      } catch (error) {
        if (error instanceof JwksUnusable) throw error;
        throw new JwksUnusable('jwks_url cannot be reached', { cause: error });
      }
      return usableKeys(text);
    },
    close: () => agent.destroy(),
  };
}

async function readLimited(body: AsyncIterable<Buffer>): Promise<string> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of body) {
    length += chunk.length;
    if (length > maxBytes) throw new JwksUnusable('the JWKS document is too large');
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
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
  if (algorithm === undefined || !algorithms.includes(algorithm)) return false;
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

/** As `dns.lookup`; what it answers is what is connected to. One private address spoils them all. */
const lookUpPublic: LookupFunction = (host, options, done) => {
  lookup(host, { ...options, all: true }, (error, addresses) => {
    if (error) return done(error, '');
    if (!addresses.every(({ address }) => isPublicAddress(address)))
      return done(new JwksUnusable('jwks_url must lead to a public address'), '');
    const first = addresses[0];
    if (!first) return done(new Error(`${host} has no address`), '');
    if (options.all) done(null, addresses);
    else done(null, first.address, first.family);
  });
};
