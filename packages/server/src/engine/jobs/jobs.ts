// Work that outlives a request and survives the process: rows of the control database.
//
// A job belongs to the process that holds a data directory, and the lock of that directory is what
// makes it the only one; so there is nothing to compete for, and at start-up every job that is still
// there is one to be done again. A job ends by being done: its handler records failures of its own
// (a backup that failed is a result). One that throws is tried again a little later, one that was
// begun too often, because it throws or takes the service down with it, is given up.
import type { Logger } from '../../kernel/logger.ts';
import type { Metastore, Queryable } from '../metastore/metastore.ts';

export interface JobHandler {
  /** Must be able to run again after it was cut off anywhere. */
  run(subject: string, signal: AbortSignal): Promise<void>;
  /** The last word on a job that could not be brought to an end. */
  giveUp(subject: string, reason: string): Promise<void>;
}

export interface JobsDeps {
  metastore: Metastore;
  home: string;
  handlers: Record<string, JobHandler>;
  /** Heavy work: no more of it at once, or it is felt. */
  concurrency: number;
  /** How long a job that threw rests. */
  retryAfterMs?: number;
  logger: Logger;
}

export interface JobStats {
  running: number;
  /** As of the last look at the table. */
  waiting: number;
  done: number;
  failedAttempts: number;
  givenUp: number;
}

export type Jobs = ReturnType<typeof createJobs>;

const maxAttempts = 3;
/** For jobs that are due later, and for notifications that got lost. */
const lookEveryMs = 15_000;

interface Job {
  key: string;
  kind: string;
  subject: string;
  attempts: number;
}

/** Adds a job in the caller's transaction: it is there exactly if the rest is. */
export async function addJob(
  tx: Queryable,
  job: { home: string; kind: string; subject: string },
): Promise<void> {
  await tx.query(
    `insert into jobs (home, kind, subject) values ($1, $2, $3)
     on conflict (kind, subject) do nothing`,
    [job.home, job.kind, job.subject],
  );
}

export function createJobs(deps: JobsDeps) {
  const { metastore, home, handlers, concurrency, logger, retryAfterMs = 10_000 } = deps;
  const running = new Map<string, Promise<void>>();
  const closing = new AbortController();
  const stats = { waiting: 0, done: 0, failedAttempts: 0, givenUp: 0 };
  let looking: Promise<void> | undefined;
  let lookAgain = false;
  let timer: NodeJS.Timeout | undefined;

  /** Starts what is due, as far as there is room. */
  function look(): void {
    lookAgain = true;
    looking ??= (async () => {
      while (lookAgain && !closing.signal.aborted) {
        lookAgain = false;
        await startDue().catch((error) =>
          logger.warn({ err: error }, 'cannot look for jobs; trying again later'),
        );
      }
      looking = undefined;
    })();
  }

  async function startDue(): Promise<void> {
    const room = concurrency - running.size;
    if (room <= 0) return countWaiting();
    const { rows } = await metastore.query<Job>(
      `update jobs set attempts = attempts + 1
       where key in (select key from jobs
                     where home = $1 and run_at <= now() and key <> all ($2::bigint[])
                     order by key limit $3)
       returning key, kind, subject, attempts`,
      [home, [...running.keys()], room],
    );
    if (rows.length < room) stats.waiting = 0;
    for (const job of rows) {
      const work = perform(job).finally(() => {
        running.delete(job.key);
        look();
      });
      running.set(job.key, work);
    }
  }

  async function countWaiting(): Promise<void> {
    const { rows } = await metastore.query<{ count: number }>(
      'select count(*)::int as count from jobs where home = $1',
      [home],
    );
    stats.waiting = Math.max(0, rows[0]!.count - running.size);
  }

  async function perform(job: Job): Promise<void> {
    const handler = handlers[job.kind];
    const about = { job: job.kind, subject: job.subject, attempt: job.attempts };
    try {
      if (!handler) throw new Error(`nobody handles jobs of the kind ${job.kind}`);
      if (job.attempts > maxAttempts) {
        await handler.giveUp(job.subject, `interrupted ${maxAttempts} times`);
        stats.givenUp++;
      } else await handler.run(job.subject, closing.signal);
      await metastore.query('delete from jobs where key = $1', [job.key]);
      stats.done++;
    } catch (error) {
      if (closing.signal.aborted) return putBack(job);
      stats.failedAttempts++;
      logger.error({ err: error, ...about }, 'a job failed');
      await metastore
        .query(`update jobs set run_at = now() + $2 * interval '1 millisecond' where key = $1`, [
          job.key,
          retryAfterMs,
        ])
        .catch(() => {}); // Without the control database nothing changes; it is looked for again.
      setTimeout(look, retryAfterMs + 50).unref();
    }
  }

  /** Cut off by a stop in order, which is no fault of the job's. */
  async function putBack(job: Job): Promise<void> {
    await metastore
      .query('update jobs set attempts = attempts - 1 where key = $1', [job.key])
      .catch(() => {});
  }

  return {
    /** Takes up what an earlier run left, and everything that is added from now on. */
    start(): void {
      metastore.notifications.on('jobs', (to) => {
        if (to === home) look();
      });
      timer = setInterval(look, lookEveryMs);
      timer.unref();
      look();
    },

    stats: (): JobStats => ({ running: running.size, ...stats }),

    /** Cuts off what runs; it is taken up again at the next start. */
    async close(): Promise<void> {
      clearInterval(timer);
      closing.abort(new Error('the service is stopping'));
      await looking;
      await Promise.allSettled(running.values());
    },
  };
}
