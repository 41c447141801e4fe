import type { Metastore } from '../../engine/metastore/metastore.ts';
import { badRequest, notFound } from '../../kernel/app-error.ts';
import type { Deployment } from './deploy.ts';
import * as runStore from './run-store.ts';
import type { InvokeOptions, RunResult, Runs } from './runs.ts';
import * as store from './store.ts';

export interface FunctionsServiceDeps {
  metastore: Metastore;
  runs: Runs;
  deploy(
    databaseId: string,
    wanted: Deployment,
  ): Promise<{ function: store.FunctionRow; version: store.VersionRow }>;
}

export type FunctionsService = ReturnType<typeof createFunctionsService>;

const defaultRunLimit = 100;
const maxRunLimit = 1_000;

export function createFunctionsService(deps: FunctionsServiceDeps) {
  const { metastore, runs } = deps;

  return {
    async deploy(databaseId: string, wanted: Deployment) {
      const deployed = await deps.deploy(databaseId, wanted);
      runs.forget(deployed.function.id);
      const { id, version, entrypoint, bundle_ref, bundle_digest, run_as, bypass_rls, created_at } =
        deployed.version;
      return {
        function: deployed.function,
        version: {
          id,
          version,
          entrypoint,
          bundle_ref,
          bundle_digest,
          run_as,
          bypass_rls,
          created_at,
        },
      };
    },

    list: (databaseId: string) => store.listFunctions(metastore, databaseId),

    invoke: (databaseId: string, functionId: string, options: InvokeOptions): Promise<RunResult> =>
      runs.invoke(databaseId, functionId, options),

    /** For the browser data plane: a public function by its name, for an end user. */
    async invokePublic(
      databaseId: string,
      name: string,
      options: InvokeOptions,
    ): Promise<RunResult> {
      const found = await store.findFunctionByName(metastore, databaseId, name);
      if (found?.visibility !== 'public') throw notFound('function');
      return runs.invoke(databaseId, found.id, options);
    },

    async runs(databaseId: string, functionId: string, limit: string | undefined) {
      const count = limit === undefined ? defaultRunLimit : Number(limit);
      if (count < 1 || count > maxRunLimit)
        throw badRequest(`limit must be between 1 and ${maxRunLimit}`);
      await runs.find(databaseId, functionId);
      return runStore.listRuns(metastore, functionId, count);
    },

    async run(databaseId: string, functionId: string, runId: string) {
      await runs.find(databaseId, functionId);
      const run = await runStore.findRun(metastore, functionId, runId);
      if (!run) throw notFound('run');
      return run;
    },

    async logs(databaseId: string, functionId: string, runId: string) {
      await runs.find(databaseId, functionId);
      const logs = await runStore.findLogs(metastore, functionId, runId);
      if (logs === undefined) throw notFound('run');
      return { run_id: runId, logs };
    },
  };
}
