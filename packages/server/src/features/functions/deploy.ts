// Deployment: everything a version needs is checked and fetched before anything is written.
import type { operations, Static } from '@coppice/contract';
import type { Metastore } from '../../engine/metastore/metastore.ts';
import { parseAllowlistEntry } from '../../engine/runtime/network-rules.ts';
import { defaultMemoryMb } from '../../engine/runtime/runtime.ts';
import { unprocessable } from '../../kernel/app-error.ts';
import type { Clock } from '../../kernel/clock.ts';
import { newId } from '../../kernel/ids.ts';
import type { SecretsService } from '../secrets/index.ts';
import { BundleUnreachable } from './bundle-source.ts';
import { parseScopePath } from './file-calls.ts';
import { type BuiltBundle, BundleProblem, type Programs } from './programs.ts';
import type { RunRoles } from './run-roles.ts';
import { checkSchedule } from './schedule.ts';
import * as store from './store.ts';

export type Deployment = Static<typeof operations.functions.deploy.body>;

export interface DeployDeps {
  metastore: Metastore;
  secrets: Pick<SecretsService, 'missing'>;
  programs: Programs;
  roles: RunRoles;
  clock: Clock;
  functionLimit: number;
}

const defaultTimeoutMs = 30_000;
const defaultRole = 'authenticated';
/** Older versions keep their record, not their code: nothing routes to them any more. */
const keptVersions = 10;
const maxStoredRef = 4096;

export function createDeploy(deps: DeployDeps) {
  return async function deploy(databaseId: string, wanted: Deployment) {
    const { metastore, clock } = deps;
    const plan = await check(databaseId, wanted);
    const built = await build(databaseId, wanted);

    return metastore.transaction(async (tx) => {
      await store.lockDeployments(tx, databaseId);
      const existing = await store.findFunctionByName(tx, databaseId, wanted.name);
      if (!existing && (await store.countFunctions(tx, databaseId)) >= deps.functionLimit)
        throw unprocessable(
          `function quota exceeded: a database may have ${deps.functionLimit} functions`,
        );
      const functionId = existing?.id ?? newId('fn');
      const number = (existing?.latest ?? 0) + 1;
      const versionId = newId('ver');
      const schedule = wanted.cron_schedule ?? null;
      const saved = await store.saveFunction(tx, {
        id: functionId,
        databaseId,
        name: wanted.name,
        visibility: wanted.visibility ?? 'private',
        versionId,
        cronSchedule: schedule,
        nextTickAt: schedule === null ? null : checkSchedule(schedule, clock.now()),
      });
      if (built) await store.saveCode(tx, databaseId, built.code);
      const version = await store.insertVersion(tx, {
        id: versionId,
        function_id: functionId,
        database_id: databaseId,
        version: number,
        ...plan,
        bundle_digest: built?.bundleDigest ?? wanted.bundle_digest?.toLowerCase() ?? null,
        code_digest: built?.code.digest ?? null,
      });
      await store.pruneCode(tx, databaseId, functionId, number - keptVersions + 1);
      return { function: saved, version: { ...version, bundle_ref: wanted.bundle_ref } };
    });
  };

  /** The version's settings, or a 422 about the first one that is wrong. */
  async function check(databaseId: string, wanted: Deployment) {
    if (wanted.cron_schedule !== undefined) checkSchedule(wanted.cron_schedule, deps.clock.now());
    if (wanted.bundle_digest !== undefined && !/^sha256:[0-9a-f]{64}$/i.test(wanted.bundle_digest))
      throw unprocessable('bundle_digest must be sha256: and 64 hexadecimal digits');
    const network_allowlist = parseAll(
      wanted.network_allowlist,
      parseAllowlistEntry,
      'network_allowlist takes host, host:port or *.domain',
    );
    const scope = 'fsx_scope takes paths such as /reports';
    const fs_read = parseAll(wanted.fsx_scope?.read, parseScopePath, scope);
    const fs_write = parseAll(wanted.fsx_scope?.write, parseScopePath, scope);
    const secret_bindings = [...new Set(wanted.secret_bindings ?? [])];
    const missing = await deps.secrets.missing(databaseId, secret_bindings);
    if (missing.length > 0) throw unprocessable(`secret_bindings: no secret ${missing.join(', ')}`);
    if (wanted.run_as !== undefined) await deps.roles.check(databaseId, wanted.run_as);
    return {
      entrypoint: wanted.entrypoint,
      // What a data: URL held is kept as code; the rest of it says nothing more.
      bundle_ref: /^data:/i.test(wanted.bundle_ref)
        ? wanted.bundle_ref.slice(0, maxStoredRef)
        : wanted.bundle_ref,
      run_as: wanted.run_as ?? defaultRole,
      bypass_rls: wanted.bypass_rls ?? false,
      timeout_ms: wanted.limits?.timeout_ms ?? defaultTimeoutMs,
      memory_mb: wanted.limits?.memory_mb ?? defaultMemoryMb,
      network_allowlist,
      fs_read,
      fs_write,
      secret_bindings,
    };
  }

  /** Undefined: the bundle cannot be reached yet. */
  async function build(databaseId: string, wanted: Deployment): Promise<BuiltBundle | undefined> {
    try {
      return await deps.programs.build({
        databaseId,
        ref: wanted.bundle_ref,
        digest: wanted.bundle_digest,
        entrypoint: wanted.entrypoint,
      });
    } catch (error) {
      if (error instanceof BundleUnreachable) return undefined;
      if (error instanceof BundleProblem) throw unprocessable(error.message);
      throw error;
    }
  }
}

function parseAll(
  entries: readonly string[] | undefined,
  parse: (entry: string) => string | undefined,
  expected: string,
): string[] {
  return (entries ?? []).map((entry) => {
    const parsed = parse(entry);
    if (parsed === undefined) throw unprocessable(`${expected}, not ${entry.slice(0, 100)}`);
    return parsed;
  });
}
