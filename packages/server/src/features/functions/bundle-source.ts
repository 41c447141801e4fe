// Fetches the code of a function from where `bundle_ref` says: the reference itself (`data:`), the
// database's own files, or the web.
import type { Files } from '../../kernel/files.ts';
import { FileError } from '../../kernel/files.ts';
import { createGuardedFetch, FetchRefused } from '../../kernel/guarded-fetch.ts';

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

export function createBundleSource(deps: {
  files: Pick<Files, 'readStream'>;
  /** Whether the web includes this machine and its private network. */
  allowPrivate: boolean;
}): BundleSource {
  const web = createGuardedFetch({
    allowPrivate: deps.allowPrivate,
    // Plain http is for development, on this machine.
    allowHttp: (host) => deps.allowPrivate && isLoopbackName(host),
    timeoutMs: fetchTimeoutMs,
    maxBytes,
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
    try {
      const { bytes, url, contentType } = await web.fetch(ref);
      return { bytes, isTypeScript: looksTyped(url.pathname) || looksTyped(contentType) };
    } catch (error) {
      if (!(error instanceof FetchRefused)) throw error;
      if (error.isTooLarge) throw tooLarge();
      throw new BundleUnreachable(`the bundle ${error.message}`, { cause: error });
    }
  }

  return {
    async fetch(databaseId, ref) {
      if (/^data:/i.test(ref)) return fromDataUrl(ref);
      if (/^https?:/i.test(ref)) {
        if (!URL.canParse(ref)) throw new BundleInvalid('bundle_ref is not a valid URL');
        return fromWeb(ref);
      }
      const scheme = /^([a-z][a-z0-9+.-]*):/i.exec(ref)?.[1] ?? 'fs';
      const path = ref.replace(/^fs:(\/\/)?/i, '');
      if (scheme.toLowerCase() !== 'fs')
        throw new BundleUnreachable(
          `bundle_ref ${scheme}: is not supported; use data:, fs:/path or https://`,
        );
      return fromFiles(databaseId, path.startsWith('/') ? path : `/${path}`);
    },
    close: web.close,
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

const isLoopbackName = (host: string) =>
  host === 'localhost' || host === '::1' || host.startsWith('127.');
