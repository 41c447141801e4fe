// Runs functions on their schedules. The next tick of each is a column in the control database;
// whoever moves it on owns the tick. A tick that passed while nobody served runs once, late.
import type { Metastore } from '../../engine/metastore/metastore.ts';
import type { Clock } from '../../kernel/clock.ts';
import { newId } from '../../kernel/ids.ts';
import type { Logger } from '../../kernel/logger.ts';
import * as runStore from './run-store.ts';
import type { Runs } from './runs.ts';
import { nextTickAfter } from './schedule.ts';

export interface CronDeps {
  metastore: Metastore;
  runs: Pick<Runs, 'find' | 'runScheduled' | 'note'>;
  /** Only databases of this data directory can be woken here. */
  home: string;
  owner: string;
  clock: Clock;
  logger: Logger;
}

export interface CronLoop {
  start(): void;
  stop(): Promise<void>;
}

/** Deployments are heard of; this is for a notification that was missed. */
const longestWaitMs = 30_000;
const never = new Date('9999-01-01T00:00:00Z');

export function createCronLoop(deps: CronDeps): CronLoop {
  const { metastore, runs, clock, logger } = deps;
  let timer: NodeJS.Timeout | undefined;
  let busy: Promise<void> | undefined;
  let again = false;
  let stopped = true;

  /** One pass at a time; a call during one makes another follow. */
  function wake(): void {
    if (stopped) return;
    if (busy) {
      again = true;
      return;
    }
    clearTimeout(timer);
    busy = pass()
      .catch((error) => {
        logger.warn({ err: error }, 'schedules could not be read');
        plan(1_000);
      })
      .finally(() => {
        busy = undefined;
        if (again) {
          again = false;
          wake();
        }
      });
  }

  async function pass(): Promise<void> {
    const now = clock.now();
    for (const due of await runStore.dueFunctions(metastore, deps.home, now)) {
      const runId = await take(due, now);
      if (runId === undefined) continue;
      runs
        .runScheduled(due.database_id, due.id, runId)
        .catch((error) => logger.error({ err: error, runId }, 'a scheduled run failed'));
    }
    const next = await runStore.nextTick(metastore, deps.home);
    plan(next ? next.getTime() - clock.now().getTime() : longestWaitMs);
  }

  function plan(delayMs: number): void {
    clearTimeout(timer);
    if (stopped) return;
    timer = setTimeout(wake, Math.min(Math.max(delayMs, 1), longestWaitMs));
    timer.unref();
  }

  /** Claims the tick and makes its run; undefined if another process did, or it is skipped. */
  async function take(due: runStore.DueFunction, now: Date): Promise<string | undefined> {
    const { version } = await runs.find(due.database_id, due.id);
    const next = nextTickAfter(due.cron_schedule, now) ?? never;
    return metastore.transaction(async (tx) => {
      if (!(await runStore.claimTick(tx, due.id, due.next_tick_at, next))) return undefined;
      const earlier = await runStore.runningCronRun(tx, due.id);
      if (earlier !== undefined) {
        const tick = due.next_tick_at.toISOString();
        runs.note(earlier, `the tick of ${tick} was skipped: this run was still going`);
        logger.warn(
          { functionId: due.id, tick, runId: earlier },
          'skipped a scheduled run: the one before is still going',
        );
        return undefined;
      }
      const runId = newId('run');
      await runStore.insertRun(tx as unknown as runStore.Preparing, {
        id: runId,
        functionId: due.id,
        versionId: version.id,
        triggerType: 'cron',
        runAs: version.run_as,
        owner: deps.owner,
        idempotencyKey: null,
      });
      return runId;
    });
  }

  metastore.notifications.on('functions', wake);
  return {
    start() {
      stopped = false;
      wake();
    },
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await busy;
    },
  };
}
