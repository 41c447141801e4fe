// The life of a run: a row `running` before it has any effect outside its sandbox, exactly one final
// status after.
//
//   (row inserted) running ──► completed | failed | timed_out
//                     └──────► failed, by any process, once the one that ran it is gone
import { setTimeout as delay } from 'node:timers/promises';
import type { Metastore } from '../../engine/metastore/metastore.ts';
import { createTrustedCache } from '../../engine/metastore/trusted-cache.ts';
import { PoolExhausted } from '../../engine/runtime/pool.ts';
import type { Runtime } from '../../engine/runtime/runtime.ts';
import type { CallResult, Outcome, RunError } from '../../engine/runtime/sandbox.ts';
import type { Sessions } from '../../engine/sessions.ts';
import { notFound, rateLimited, unprocessable } from '../../kernel/app-error.ts';
import type { Clock } from '../../kernel/clock.ts';
import type { Files } from '../../kernel/files.ts';
import { newId } from '../../kernel/ids.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Secret } from '../../kernel/secret.ts';
import type { TokenBuckets } from '../../kernel/token-bucket.ts';
import type { SecretsService } from '../secrets/index.ts';
import { createDatabaseCalls } from './database-calls.ts';
import { createFileCalls } from './file-calls.ts';
import { BundleProblem, type Programs } from './programs.ts';
import { createRunLog, type RunLog } from './run-log.ts';
import type { RunRoles } from './run-roles.ts';
import * as runStore from './run-store.ts';
import * as store from './store.ts';

export interface RunsDeps {
  metastore: Metastore;
  runtime: Runtime;
  programs: Programs;
  secrets: Pick<SecretsService, 'reveal'>;
  roles: RunRoles;
  sessions: Sessions;
  files: Files;
  clock: Clock;
  logger: Logger;
  /** This process, as run rows name it. */
  owner: string;
  invocationLimits: TokenBuckets;
}

export interface InvokeOptions {
  input: unknown;
  idempotencyKey?: string | undefined;
  /** Verified claims of the end user it is for. */
  claims?: Readonly<Record<string, unknown>>;
}

export interface RunResult {
  run_id: string;
  function_id: string;
  version_id: string;
  status: runStore.RunStatus;
  result_json: string;
}

interface StartedRun {
  id: string;
  version: store.VersionRow;
  triggerType: string;
  options: InvokeOptions;
  secrets: ReadonlyMap<string, Secret>;
  /** Resolves when its row is there. */
  recorded: Promise<unknown>;
}

interface RunningRun {
  log: RunLog;
  done: Promise<unknown>;
}

export type Runs = ReturnType<typeof createRuns>;

const unreadableSecrets: Outcome = {
  status: 'failed',
  error: { name: 'SecretError', message: 'the secrets of the function cannot be opened' },
};
const foreignKeyViolation = '23503';
const logSaveIntervalMs = 2_000;
/** The record of a run must get its end, also when the control database has just restarted. */
const finishRetryMs = [100, 1_000, 3_000];
const otherProcessPollMs = 250;

export function createRuns(deps: RunsDeps) {
  const { metastore, clock, logger } = deps;
  const current = createTrustedCache<store.CurrentFunction | undefined>(
    metastore.notifications,
    'functions',
  );
  const running = new Map<string, RunningRun>();
  let stopping = false;

  async function find(databaseId: string, functionId: string): Promise<store.CurrentFunction> {
    const found =
      current.get(functionId) ??
      (await current.load(functionId, () => store.findCurrent(metastore, functionId)));
    if (found?.version.database_id !== databaseId) throw notFound('function');
    return found;
  }

  async function invoke(
    databaseId: string,
    functionId: string,
    options: InvokeOptions,
  ): Promise<RunResult> {
    const { version, enabled } = await find(databaseId, functionId);
    if (!enabled) throw unprocessable('the function is disabled');
    const waitSeconds = deps.invocationLimits.take(functionId);
    if (waitSeconds > 0)
      throw rateLimited('too many invocations of this function; try again later', waitSeconds);

    const runId = newId('run');
    const recorded = runStore
      .insertRun(metastore.pool, {
        id: runId,
        functionId,
        versionId: version.id,
        triggerType: 'invoke',
        runAs: version.run_as,
        owner: deps.owner,
        idempotencyKey: options.idempotencyKey ?? null,
      })
      .catch((error: { code?: string }) => {
        // Its database was deleted since it was looked up.
        throw error.code === foreignKeyViolation ? notFound('function') : error;
      });
    recorded.catch(() => {}); // whoever awaits it hears of it
    if (options.idempotencyKey !== undefined && !(await recorded))
      return firstAnswer(functionId, options.idempotencyKey, version.timeout_ms);
    try {
      return await execute(runId, version, 'invoke', options, recorded);
    } catch (error) {
      if (!(error instanceof PoolExhausted)) throw error;
      await runStore.deleteRun(metastore, runId);
      throw rateLimited('all sandboxes are busy; try again later', 1);
    }
  }

  /** The same key again: the answer of the run that had it first, once there is one. */
  async function firstAnswer(functionId: string, key: string, timeoutMs: number) {
    const deadline = clock.now().getTime() + timeoutMs + 10_000;
    while (true) {
      const answer = await runStore.findAnswer(metastore, functionId, key);
      // The first one was turned away (429) meanwhile.
      if (!answer) throw rateLimited('all sandboxes are busy; try again later', 1);
      if (answer.status !== 'running' || clock.now().getTime() > deadline)
        return toResult(functionId, answer);
      const here = running.get(answer.id);
      if (here) await here.done.catch(() => {});
      else await delay(otherProcessPollMs);
    }
  }

  /** Runs a version whose run is `recorded`, and writes the record's end. */
  function execute(
    runId: string,
    version: store.VersionRow,
    triggerType: string,
    options: InvokeOptions,
    recorded: Promise<unknown>,
  ): Promise<RunResult> {
    const entry = {} as RunningRun;
    const work = async () => {
      // Code that can reach the world waits for its record; the rest starts meanwhile.
      if (version.network_allowlist.length > 0) await recorded;
      const secrets = await reveal(version);
      entry.log = createRunLog(clock, secrets?.values() ?? []);
      const outcome: Outcome = secrets
        ? await carryOut({ id: runId, version, triggerType, options, secrets, recorded }, entry.log)
            // Also one that never began is taken back only once it is there.
            .finally(() => recorded)
        : unreadableSecrets;
      return finish(runId, version, outcome, entry.log);
    };
    const done = work();
    entry.done = done;
    running.set(runId, entry);
    return done.finally(() => running.delete(runId));
  }

  async function reveal(version: store.VersionRow): Promise<Map<string, Secret> | undefined> {
    try {
      return await deps.secrets.reveal(version.database_id, version.secret_bindings);
    } catch (error) {
      logger.error({ err: error, functionId: version.function_id }, 'secrets cannot be opened');
      return undefined;
    }
  }

  async function carryOut(run: StartedRun, log: RunLog): Promise<Outcome> {
    const { id: runId, version, triggerType, options, secrets } = run;
    const databaseId = version.database_id;
    const database = createDatabaseCalls(
      { sessions: deps.sessions, roles: deps.roles },
      {
        databaseId,
        runAs: version.run_as,
        bypassRls: version.bypass_rls,
        claims: options.claims,
        timeoutMs: version.timeout_ms,
      },
    );
    const files = createFileCalls(deps.files, databaseId, {
      read: version.fs_read,
      write: version.fs_write,
    });
    const saving = keepLogs(runId, log);
    try {
      return await deps.runtime.run({
        tenantId: databaseId,
        functionId: version.function_id,
        versionId: version.id,
        memoryMb: version.memory_mb,
        program: () => deps.programs.programOf(version),
        invocation: {
          input: options.input ?? {},
          self: { functionId: version.function_id, versionId: version.id, runId, triggerType },
          secrets: Object.fromEntries([...secrets].map(([name, value]) => [name, value.reveal()])),
          timeoutMs: version.timeout_ms,
          onLog: log.add,
          onCall: async (method, args, bytes) => {
            await run.recorded;
            return call(database, files, method, args, bytes);
          },
        },
      });
    } catch (error) {
      if (error instanceof PoolExhausted) throw error;
      if (error instanceof BundleProblem)
        return { status: 'failed', error: { name: error.name, message: error.message } };
      logger.error({ err: error, runId }, 'a function could not be run');
      return {
        status: 'failed',
        error: { name: 'RuntimeError', message: 'the function could not be started' },
      };
    } finally {
      clearInterval(saving);
      await database
        .close()
        .catch((error) =>
          logger.warn({ err: error, runId }, 'a run could not be cleaned up after'),
        );
    }
  }

  /** A long run's log can be read while it goes on, and outlives the service. */
  function keepLogs(runId: string, log: RunLog): NodeJS.Timeout {
    let saved = '';
    const timer = setInterval(() => {
      const text = log.text();
      if (text === saved) return;
      saved = text;
      runStore.saveLogs(metastore, runId, text).catch(() => {});
    }, logSaveIntervalMs);
    return timer.unref();
  }

  async function finish(
    runId: string,
    version: store.VersionRow,
    outcome: Outcome,
    log: RunLog,
  ): Promise<RunResult> {
    const end = finalState(version, outcome, log);
    const ended = await retrying(() =>
      runStore.finishRun(metastore.pool, runId, { ...end, logs: log.text() }),
    );
    const answer = {
      id: runId,
      version_id: version.id,
      status: end.status,
      result_json: end.resultJson,
    };
    if (ended) return toResult(version.function_id, answer);
    const other = await runStore.findAnswerById(metastore, runId);
    if (!other) throw notFound('function');
    return toResult(version.function_id, other);
  }

  function finalState(version: store.VersionRow, outcome: Outcome, log: RunLog) {
    if (outcome.status === 'completed')
      return { status: outcome.status, resultJson: outcome.resultJson };
    const error: RunError =
      outcome.status === 'timed_out'
        ? {
            name: 'TimeoutError',
            message: `the function ran longer than its limit of ${version.timeout_ms} ms`,
          }
        : stopping
          ? { name: 'ServiceStoppedError', message: 'the service stopped during the run' }
          : outcome.error;
    const message = log.redact(error.message);
    if (outcome.status === 'timed_out' || error !== outcome.error) log.add('ERROR', message);
    return {
      status: outcome.status,
      resultJson: JSON.stringify({ error: { name: log.redact(error.name), message } }),
    };
  }

  return {
    invoke,
    find,
    forget: current.forget,

    /** A cron run, whose row the tick has made. */
    async runScheduled(databaseId: string, functionId: string, runId: string): Promise<void> {
      const { version } = await find(databaseId, functionId);
      try {
        await execute(runId, version, 'cron', { input: {} }, Promise.resolve());
      } catch (error) {
        if (!(error instanceof PoolExhausted)) throw error;
        const failure = { name: 'BusyError', message: 'no sandbox became free in time' };
        const log = createRunLog(clock, []);
        log.add('ERROR', failure.message);
        await finish(runId, version, { status: 'failed', error: failure }, log);
      }
    },

    /** Adds a line to the log of a run, if it goes on in this process. */
    note: (runId: string, message: string) => running.get(runId)?.log?.add('WARN', message),

    /** Ends what processes left behind that are no more. */
    async failAbandoned(): Promise<void> {
      const owners = await runStore.deadOwners(metastore);
      if (owners.length === 0) return;
      const error = { name: 'ServiceEndedError', message: 'the service ended during the run' };
      const count = await metastore.transaction((tx) =>
        runStore.failRunsOf(tx, owners, JSON.stringify({ error })),
      );
      if (count > 0) logger.info({ count }, 'runs that a crash had cut off are marked as failed');
    },

    /** From now on a run that fails does so because the service stops. */
    stop: () => {
      stopping = true;
    },
    settled: () => Promise.allSettled([...running.values()].map(({ done }) => done)),
  };
}

async function retrying<T>(work: () => Promise<T>): Promise<T> {
  for (const delayMs of finishRetryMs)
    try {
      return await work();
    } catch {
      await delay(delayMs);
    }
  return work();
}

const toResult = (functionId: string, answer: runStore.RunAnswer): RunResult => ({
  run_id: answer.id,
  function_id: functionId,
  version_id: answer.version_id,
  status: answer.status,
  result_json: answer.result_json ?? 'null',
});

async function call(
  database: ReturnType<typeof createDatabaseCalls>,
  files: ReturnType<typeof createFileCalls>,
  method: string,
  args: Record<string, unknown>,
  bytes: Buffer,
): Promise<CallResult> {
  if (method.startsWith('fs.')) return files.call(method.slice('fs.'.length), args, bytes);
  switch (method) {
    case 'db.query':
      return { value: await database.query(args) };
    case 'db.begin':
      return { value: await database.begin() };
    case 'db.commit':
      return { value: (await database.end(args, 'commit')) ?? null };
    case 'db.rollback':
      return { value: (await database.end(args, 'rollback')) ?? null };
    default:
      throw new Error('no such call');
  }
}
