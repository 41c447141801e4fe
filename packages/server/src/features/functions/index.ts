// Functions: customers' code next to their data. Deployment compiles a bundle into a version that
// never changes (deploy.ts, programs.ts); a run executes it in a sandbox and leaves one record
// (runs.ts); schedules make runs by themselves (cron.ts). Isolation is the business of
// engine/runtime.
//
// Invariants: a run has exactly one final status; a tick of a schedule makes at most one run however
// many processes serve; what a function does to the database it does as its `run_as` role.
import type pg from 'pg';
import type { Metastore } from '../../engine/metastore/metastore.ts';
import type { Runtime } from '../../engine/runtime/runtime.ts';
import type { Sessions } from '../../engine/sessions.ts';
import type { Clock } from '../../kernel/clock.ts';
import type { Files } from '../../kernel/files.ts';
import { randomBase32 } from '../../kernel/ids.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Route } from '../../kernel/route.ts';
import type { TokenBuckets } from '../../kernel/token-bucket.ts';
import type { SecretsService } from '../secrets/index.ts';
import { createBundleSource } from './bundle-source.ts';
import { createCronLoop } from './cron.ts';
import { createDeploy } from './deploy.ts';
import { createPrograms } from './programs.ts';
import { functionRoutes } from './routes.ts';
import { createRunOwner } from './run-owner.ts';
import { createRunRoles } from './run-roles.ts';
import { pruneRuns } from './run-store.ts';
import { createRuns } from './runs.ts';
import { createFunctionsService, type FunctionsService } from './service.ts';

export type { FunctionsService };

export interface FunctionsDeps {
  metastore: Metastore;
  runtime: Runtime;
  /** For the service's own questions, and for what functions ask: its limit is theirs. */
  sessions: Sessions;
  functionSessions: Sessions;
  files: Files;
  secrets: SecretsService;
  clock: Clock;
  logger: Logger;
  /** Names this data directory in the control database. */
  home: string;
  invocationLimits: TokenBuckets;
  /** Whether bundles may come from private and loopback addresses. */
  allowPrivateFetch: boolean;
  functionLimit: number;
  runRetentionMs: number;
  /** How far back branches reach: values of secrets are kept as long. */
  historyRetentionMs: number;
}

export interface Functions {
  routes: Route[];
  service: FunctionsService;
  /** Settles what a crash left, and begins with the schedules. */
  start(): Promise<void>;
  /** Ends runs and waits until their records say so. */
  stop(): Promise<void>;
}

const runsPerFunction = 10_000;
const abandonedCheckMs = 15_000;
const pruneIntervalMs = 10 * 60_000;

export function createFunctions(deps: FunctionsDeps): Functions {
  const { metastore, logger, clock } = deps;
  const owner = createRunOwner({
    id: randomBase32(20),
    connection: metastore.pool.options as pg.ClientConfig,
    logger,
  });
  const source = createBundleSource({ files: deps.files, allowPrivate: deps.allowPrivateFetch });
  const programs = createPrograms({ metastore, source });
  const roles = createRunRoles({ sessions: deps.sessions });
  const runs = createRuns({
    ...deps,
    sessions: deps.functionSessions,
    programs,
    roles,
    owner: owner.id,
  });
  const deploy = createDeploy({ ...deps, programs, roles });
  const service = createFunctionsService({ metastore, runs, deploy });
  const cron = createCronLoop({ ...deps, runs, owner: owner.id });
  const timers: NodeJS.Timeout[] = [];

  function every(intervalMs: number, what: string, work: () => Promise<unknown>): void {
    const timer = setInterval(() => {
      work().catch((error) => logger.warn({ err: error }, `${what} failed`));
    }, intervalMs);
    timers.push(timer.unref());
  }

  async function prune(): Promise<void> {
    const now = clock.now().getTime();
    await pruneRuns(metastore, new Date(now - deps.runRetentionMs), runsPerFunction);
    await deps.secrets.prune(new Date(now - deps.historyRetentionMs));
  }

  return {
    routes: functionRoutes(service),
    service,
    async start() {
      await owner.start();
      await runs.failAbandoned();
      every(abandonedCheckMs, 'looking for abandoned runs', () => runs.failAbandoned());
      every(pruneIntervalMs, 'pruning old runs', prune);
      deps.runtime.start();
      cron.start();
    },
    async stop() {
      for (const timer of timers) clearInterval(timer);
      await cron.stop();
      runs.stop();
      await deps.runtime.close();
      await runs.settled();
      await owner.stop();
      await source.close();
    },
  };
}
