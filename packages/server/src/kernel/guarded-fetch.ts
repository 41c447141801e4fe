// Fetches from an address that a customer chose, without being led anywhere the service would not go
// by itself: every hop is checked, a name is looked up once and that address is the one connected to,
// and time, size and redirects are bounded.
import { lookup } from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';
import { Agent, request } from 'undici';
import { isPublicAddress } from './public-address.ts';

/** Why nothing came back, in words that follow the name of what was to be fetched. */
export class FetchRefused extends Error {
  readonly isTooLarge: boolean;

  constructor(message: string, options: { cause?: unknown; isTooLarge?: boolean } = {}) {
    super(message, options);
    this.isTooLarge = options.isTooLarge ?? false;
  }
}

export interface GuardedFetch {
  /** Throws `FetchRefused` and nothing else. */
  fetch(url: string): Promise<{ bytes: Buffer; url: URL; contentType: string }>;
  close(): Promise<void>;
}

export interface GuardedFetchOptions {
  /** Whether private and loopback addresses may be connected to. */
  allowPrivate: boolean;
  /** Where plain http will do; elsewhere it is https only. */
  allowHttp(host: string): boolean;
  timeoutMs: number;
  maxBytes: number;
}

const connectTimeoutMs = 3_000;
const maxRedirects = 4;

export function createGuardedFetch(options: GuardedFetchOptions): GuardedFetch {
  const { allowPrivate, maxBytes } = options;
  const agent = new Agent({
    connect: { timeout: connectTimeoutMs, ...(allowPrivate ? {} : { lookup: lookUpPublic }) },
  });

  function check(url: URL): void {
    if (url.username !== '' || url.password !== '')
      throw new FetchRefused('must not contain credentials');
    const host = url.hostname.replace(/^\[|\]$/g, '');
    if (url.protocol !== 'https:' && !(url.protocol === 'http:' && options.allowHttp(host)))
      throw new FetchRefused('must be an https:// URL');
    // Names are checked when they are looked up.
    if (isIP(host) !== 0 && !allowPrivate && !isPublicAddress(host)) throw notPublic();
  }

  async function follow(start: URL) {
    const signal = AbortSignal.timeout(options.timeoutMs);
    let url = start;
    for (let hop = 0; hop <= maxRedirects; hop++) {
      check(url);
      const { statusCode, headers, body } = await request(url, { dispatcher: agent, signal });
      try {
        const { location } = headers;
        if (statusCode >= 300 && statusCode < 400 && typeof location === 'string') {
          if (!URL.canParse(location, url)) throw new FetchRefused('redirects to no valid URL');
          url = new URL(location, url);
          continue;
        }
        if (statusCode !== 200) throw new FetchRefused(`answered status ${statusCode}`);
        const bytes = await readLimited(body, maxBytes);
        return { bytes, url, contentType: String(headers['content-type'] ?? '') };
      } finally {
        body.on('error', () => {}).destroy();
      }
    }
    throw new FetchRefused('redirects too often');
  }

  return {
    async fetch(text) {
      if (!URL.canParse(text)) throw new FetchRefused('is not a valid URL');
      try {
        return await follow(new URL(text));
      } catch (error) {
        if (error instanceof FetchRefused) throw error;
        throw new FetchRefused('cannot be reached', { cause: error });
      }
    },
    close: () => agent.destroy(),
  };
}

const notPublic = () => new FetchRefused('must lead to a public address');

async function readLimited(body: AsyncIterable<Buffer>, maxBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of body) {
    length += chunk.length;
    if (length > maxBytes) throw new FetchRefused('is too large', { isTooLarge: true });
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** As `dns.lookup`; what it answers is what is connected to. One private address spoils them all. */
const lookUpPublic: LookupFunction = (host, options, done) => {
  lookup(host, { ...options, all: true }, (error, addresses) => {
    if (error) return done(error, '');
    if (!addresses.every(({ address }) => isPublicAddress(address))) return done(notPublic(), '');
    const first = addresses[0];
    if (!first) return done(new Error(`${host} has no address`), '');
    if (options.all) done(null, addresses);
    else done(null, first.address, first.family);
  });
};
