// The code of versions, ready for a sandbox: from memory, from the control database, or, for a
// version whose bundle could not be reached at deployment, from where the bundle is.
import { createHash } from 'node:crypto';
import type { Metastore } from '../../engine/metastore/metastore.ts';
import { type CompiledBundle, CompileError, compileBundle } from '../../engine/runtime/compile.ts';
import type { Program } from '../../engine/runtime/sandbox.ts';
import { BundleInvalid, type BundleSource, BundleUnreachable } from './bundle-source.ts';
import * as store from './store.ts';

/** Why a version cannot run, in words for its author. */
export class BundleProblem extends Error {
  override readonly name = 'BundleError';
}

export interface BuiltBundle {
  bundleDigest: string;
  code: store.CodeRow;
}

export interface Programs {
  /** Throws `BundleUnreachable` for now, `BundleProblem` for good. */
  build(request: {
    databaseId: string;
    ref: string;
    digest: string | undefined;
    entrypoint: string;
  }): Promise<BuiltBundle>;
  /** Throws a `BundleProblem`. */
  programOf(version: store.VersionRow): Promise<Program>;
}

const cacheBytes = 64 * 1024 * 1024;

const sha256 = (bytes: Buffer) => `sha256:${createHash('sha256').update(bytes).digest('hex')}`;

export function splitEntrypoint(entrypoint: string): { moduleName: string; handler: string } {
  const at = entrypoint.lastIndexOf('.');
  return { moduleName: entrypoint.slice(0, at), handler: entrypoint.slice(at + 1) };
}

export function createPrograms(deps: { metastore: Metastore; source: BundleSource }): Programs {
  /** Least recently used first. */
  const cache = new Map<string, CompiledBundle>();
  let cachedBytes = 0;

  function remember(versionId: string, bundle: CompiledBundle): CompiledBundle {
    if (bundle.code.length > cacheBytes) return bundle;
    cache.set(versionId, bundle);
    cachedBytes += bundle.code.length;
    for (const [oldest, { code }] of cache) {
      if (cachedBytes <= cacheBytes) break;
      cache.delete(oldest);
      cachedBytes -= code.length;
    }
    return bundle;
  }

  async function build(request: Parameters<Programs['build']>[0]): Promise<BuiltBundle> {
    const { databaseId, ref, digest, entrypoint } = request;
    try {
      const { bytes, isTypeScript } = await deps.source.fetch(databaseId, ref);
      const bundleDigest = sha256(bytes);
      if (digest !== undefined && digest.toLowerCase() !== bundleDigest)
        throw new BundleProblem(`bundle_digest does not match: the bundle's is ${bundleDigest}`);
      const compiled = await compileBundle(
        bytes,
        splitEntrypoint(entrypoint).moduleName,
        isTypeScript,
      );
      return { bundleDigest, code: { ...compiled, digest: sha256(compiled.code) } };
    } catch (error) {
      if (error instanceof CompileError || error instanceof BundleInvalid)
        throw new BundleProblem(error.message);
      throw error;
    }
  }

  /** What was missing at deployment may be there now. */
  async function complete(version: store.VersionRow): Promise<CompiledBundle> {
    const built = await build({
      databaseId: version.database_id,
      ref: version.bundle_ref,
      digest: version.bundle_digest ?? undefined,
      entrypoint: version.entrypoint,
    });
    await deps.metastore.transaction(async (tx) => {
      await store.saveCode(tx, version.database_id, built.code);
      await store.completeVersion(tx, version.id, built.bundleDigest, built.code.digest);
    });
    // Another process may have been first; what it stored is the version from then on.
    const current = await store.findCurrent(deps.metastore, version.function_id);
    const digest = current?.version.id === version.id ? current.version.code_digest : null;
    return (digest && (await load(version.database_id, digest))) || built.code;
  }

  const load = (databaseId: string, digest: string) =>
    store.findCode(deps.metastore, databaseId, digest);

  async function bundleOf(version: store.VersionRow): Promise<CompiledBundle> {
    const cached = cache.get(version.id);
    if (cached) {
      cache.delete(version.id);
      cache.set(version.id, cached);
      return cached;
    }
    const stored = version.code_digest && (await load(version.database_id, version.code_digest));
    return remember(version.id, stored || (await complete(version)));
  }

  return {
    build,
    async programOf(version) {
      try {
        const { code, format } = await bundleOf(version);
        const { handler } = splitEntrypoint(version.entrypoint);
        return { code, format, entry: handler, allowlist: version.network_allowlist };
      } catch (error) {
        if (error instanceof BundleUnreachable) throw new BundleProblem(error.message);
        throw error;
      }
    },
  };
}
