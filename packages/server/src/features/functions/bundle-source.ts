// Fetches the code of a function from where `bundle_ref` says: the reference itself (`data:`), the
// database's own files, or the web.
import { lookup } from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';
import { Agent, request } from 'undici';
import type { Files } from '../../kernel/files.ts';
import { FileError } from '../../kernel/files.ts';
import { isPublicAddress } from '../../kernel/public-address.ts';

/** It is not there, or not yet: worth another try later. */
export class BundleUnreachable extends Error {}
/** The reference or what it leads to is wrong, and will stay so. */
export class BundleInvalid extends Error {}

export interface Bundle {
  bytes: Buffer;
  isTypeScript: boolean;
}

export interface BundleSource {
  fetch(databaseId: string, ref: string): Promise<Bundle>;
  close(): Promise<void>;
}

const maxBytes = 32 * 1024 * 1024;
const tooLarge = () => new BundleInvalid(`the bundle is larger than ${maxBytes / 1024 / 1024} MiB`);
const fetchTimeoutMs = 15_000;
const maxRedirects = 5;

export function createBundleSource(deps: {
  files: Pick<Files, 'readStream'>;
  /** Whether the web includes this machine and its private network. */
  allowPrivate: boolean;
}): BundleSource {
  const agent = new Agent({
    connect: { lookup: deps.allowPrivate ? undefined : lookUpPublic, timeout: 5_000 },
  });

  async function fromFiles(databaseId: string, path: string): Promise<Bundle> {
    const chunks: Buffer[] = [];
    try {
      await deps.files.readStream(
        { databaseId, role: 'admin' },
        path,
        { signal: AbortSignal.timeout(fetchTimeoutMs) },
        async (file) => {
          if (file.length > maxBytes) throw tooLarge();
          for await (const chunk of file.chunks) chunks.push(chunk);
        },
      );
    } catch (error) {
      if (!(error instanceof FileError)) throw error;
      throw new BundleUnreachable(`the bundle ${path} cannot be read: ${error.message}`);
    }
    return { bytes: Buffer.concat(chunks), isTypeScript: looksTyped(path) };
  }

  async function fromWeb(ref: string): Promise<Bundle> {
    let url = new URL(ref);
    const signal = AbortSignal.timeout(fetchTimeoutMs);
    for (let hop = 0; hop <= maxRedirects; hop++) {
      admit(url);
      const { statusCode, headers, body } = await request(url, { dispatcher: agent, signal });
      if (statusCode >= 300 && statusCode < 400 && typeof headers.location === 'string') {
        await body.dump();
        url = new URL(headers.location, url);
        continue;
      }
      if (statusCode !== 200) {
        await body.dump();
        throw new BundleUnreachable(`${url.host} answered ${statusCode} for the bundle`);
      }
      const chunks: Buffer[] = [];
      let length = 0;
      for await (const chunk of body) {
        length += (chunk as Buffer).length;
        if (length > maxBytes) throw tooLarge();
        chunks.push(chunk as Buffer);
      }
      const isTypeScript = looksTyped(url.pathname) || looksTyped(String(headers['content-type']));
      return { bytes: Buffer.concat(chunks), isTypeScript };
    }
    throw new BundleUnreachable('the bundle redirects too often');
  }

  /** Plain http is for development, on this machine. */
  function admit(url: URL): void {
    const host = url.hostname.replace(/^\[|\]$/g, '');
    const isLocal = host === 'localhost' || host === '::1' || /^127\./.test(host);
    if (url.protocol !== 'https:' && !(url.protocol === 'http:' && isLocal && deps.allowPrivate))
      throw new BundleUnreachable('a bundle on the web must be at an https:// address');
    // Names are checked when they are looked up.
    if (isIP(host) && !deps.allowPrivate && !isPublicAddress(host))
      throw new BundleUnreachable(`${host} is not a public address`);
  }

  return {
    async fetch(databaseId, ref) {
      if (/^data:/i.test(ref)) return fromDataUrl(ref);
      if (/^https?:/i.test(ref)) {
        if (!URL.canParse(ref)) throw new BundleInvalid('bundle_ref is not a valid URL');
        return fromWeb(ref).catch((error: Error) => {
          if (error instanceof BundleUnreachable || error instanceof BundleInvalid) throw error;
          throw new BundleUnreachable(`the bundle cannot be fetched: ${error.message}`);
        });
      }
      const scheme = /^([a-z][a-z0-9+.-]*):/i.exec(ref)?.[1] ?? 'fs';
      const path = ref.replace(/^fs:(\/\/)?/i, '');
      if (scheme.toLowerCase() !== 'fs')
        throw new BundleUnreachable(
          `bundle_ref ${scheme}: is not supported; use data:, fs:/path or https://`,
        );
      return fromFiles(databaseId, path.startsWith('/') ? path : `/${path}`);
    },
    close: () => agent.close(),
  };
}

const looksTyped = (name: string) => /\.[mc]?tsx?$/i.test(name) || /typescript/i.test(name);

/** https://www.rfc-editor.org/rfc/rfc2397 */
function fromDataUrl(ref: string): Bundle {
  const comma = ref.indexOf(',');
  if (comma === -1) throw new BundleInvalid('bundle_ref is not a valid data: URL');
  const meta = ref.slice('data:'.length, comma);
  const data = ref.slice(comma + 1);
  let bytes: Buffer;
  if (/;\s*base64\s*$/i.test(meta)) {
    const encoded = data.includes('%') ? percentDecode(data).toString('latin1') : data;
    const text = encoded.replace(/\s/g, '').replaceAll('-', '+').replaceAll('_', '/');
    if (!/^[A-Za-z0-9+/]*={0,2}$/.test(text))
      throw new BundleInvalid('bundle_ref is not valid base64');
    bytes = Buffer.from(text, 'base64');
  } else bytes = percentDecode(data);
  if (bytes.length > maxBytes) throw tooLarge();
  if (bytes.length === 0) throw new BundleInvalid('the bundle is empty');
  return { bytes, isTypeScript: looksTyped(meta) };
}

/** As URLs define it: what is no escape stands for itself. */
function percentDecode(text: string): Buffer {
  const parts = text.split(/((?:%[0-9a-f]{2})+)/i);
  return Buffer.concat(
    parts.map((part, index) =>
      index % 2 === 1 ? Buffer.from(part.replaceAll('%', ''), 'hex') : Buffer.from(part),
    ),
  );
}

/** As `dns.lookup`, without the addresses that are nobody's business. */
const lookUpPublic: LookupFunction = (host, options, done) => {
  lookup(host, { ...options, all: true }, (error, addresses) => {
    if (error) return done(error, '');
    const allowed = addresses.filter(({ address }) => isPublicAddress(address));
    const first = allowed[0];
    if (!first) return done(new Error(`${host} does not lead to a public address`), '');
    if (options.all) done(null, allowed);
    else done(null, first.address, first.family);
  });
};
