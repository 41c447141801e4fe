import type { QueryConfig, QueryResult } from 'pg';
import type { Queryable } from '../../engine/metastore/metastore.ts';

/** For the two statements of every run, which are worth preparing: a pool or a client of it. */
export interface Preparing {
  query(config: QueryConfig): Promise<QueryResult>;
}

export type RunStatus = 'running' | 'completed' | 'failed' | 'timed_out';

export interface RunRow {
  id: string;
  function_id: string;
  version_id: string;
  trigger_type: string;
  status: RunStatus;
  run_as: string;
  attempt: number;
  created_at: Date;
}

export interface RunAnswer {
  id: string;
  version_id: string;
  status: RunStatus;
  result_json: string | null;
}

export interface NewRun {
  id: string;
  functionId: string;
  versionId: string;
  triggerType: string;
  runAs: string;
  owner: string;
  idempotencyKey: string | null;
}

const runColumns = 'id, function_id, version_id, trigger_type, status, run_as, attempt, created_at';

/**
 * False if the function has a run of that idempotency key. It is not flushed to disk by itself: the
 * run's end is, and what is lost with the machine before that has had no answer.
 */
export async function insertRun(db: Preparing, run: NewRun): Promise<boolean> {
  const { rowCount } = await db.query({
    name: 'function-run-insert',
    text: `with later as (select set_config('synchronous_commit', 'off', true))
     insert into function_runs
       (id, function_id, version_id, trigger_type, status, run_as, owner, idempotency_key)
     select $1, $2, $3, $4, 'running', $5, $6, $7 from later
     on conflict (function_id, idempotency_key) where idempotency_key is not null do nothing`,
    values: [
      run.id,
      run.functionId,
      run.versionId,
      run.triggerType,
      run.runAs,
      run.owner,
      run.idempotencyKey,
    ],
  });
  return rowCount === 1;
}

/** Takes back a run that never began. */
export async function deleteRun(db: Queryable, id: string): Promise<void> {
  await db.query('delete from function_runs where id = $1', [id]);
}

/** The one transition of a run. False if somebody else has ended it. */
export async function finishRun(
  db: Preparing,
  id: string,
  end: { status: RunStatus; resultJson: string; logs: string },
): Promise<boolean> {
  const { rowCount } = await db.query({
    name: 'function-run-finish',
    text: `update function_runs set status = $2, result_json = $3, logs = $4, finished_at = now()
      where id = $1 and status = 'running'`,
    values: [id, end.status, end.resultJson, end.logs],
  });
  return rowCount === 1;
}

export async function saveLogs(db: Queryable, id: string, logs: string): Promise<void> {
  await db.query(
    `with later as (select set_config('synchronous_commit', 'off', true))
     update function_runs set logs = $2 from later where id = $1 and status = 'running'`,
    [id, logs],
  );
}

export async function findAnswer(
  db: Queryable,
  functionId: string,
  idempotencyKey: string,
): Promise<RunAnswer | undefined> {
  const { rows } = await db.query<RunAnswer>(
    `select id, version_id, status, result_json from function_runs
      where function_id = $1 and idempotency_key = $2`,
    [functionId, idempotencyKey],
  );
  return rows[0];
}

export async function findAnswerById(db: Queryable, id: string): Promise<RunAnswer | undefined> {
  const { rows } = await db.query<RunAnswer>(
    'select id, version_id, status, result_json from function_runs where id = $1',
    [id],
  );
  return rows[0];
}

export async function listRuns(
  db: Queryable,
  functionId: string,
  limit: number,
): Promise<RunRow[]> {
  const { rows } = await db.query<RunRow>(
    `select ${runColumns} from function_runs where function_id = $1 order by number desc limit $2`,
    [functionId, limit],
  );
  return rows;
}

export async function findRun(
  db: Queryable,
  functionId: string,
  runId: string,
): Promise<RunRow | undefined> {
  const { rows } = await db.query<RunRow>(
    `select ${runColumns} from function_runs where function_id = $1 and id = $2`,
    [functionId, runId],
  );
  return rows[0];
}

export async function findLogs(
  db: Queryable,
  functionId: string,
  runId: string,
): Promise<string | undefined> {
  const { rows } = await db.query<{ logs: string }>(
    'select logs from function_runs where function_id = $1 and id = $2',
    [functionId, runId],
  );
  return rows[0]?.logs;
}

/** Owners that no process holds the lock of any more. */
export async function deadOwners(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>(
    `select id from (select id from function_run_owners) o
      where pg_try_advisory_xact_lock(hashtextextended(id, 8))`,
  );
  return rows.map(({ id }) => id);
}

/** Ends the runs that these left, and forgets them. */
export async function failRunsOf(
  tx: Queryable,
  owners: readonly string[],
  resultJson: string,
): Promise<number> {
  const { rowCount } = await tx.query(
    `update function_runs set status = 'failed', result_json = $2, finished_at = now()
      where owner = any ($1) and status = 'running'`,
    [owners, resultJson],
  );
  await tx.query('delete from function_run_owners where id = any ($1)', [owners]);
  return rowCount ?? 0;
}

export interface DueFunction {
  id: string;
  database_id: string;
  cron_schedule: string;
  next_tick_at: Date;
}

const scheduledHere = `from functions f join databases d on d.id = f.database_id
  where f.next_tick_at is not null and f.enabled and d.ready and d.home = $1`;

export async function nextTick(db: Queryable, home: string): Promise<Date | undefined> {
  const { rows } = await db.query<{ at: Date | null }>(
    `select min(f.next_tick_at) as at ${scheduledHere}`,
    [home],
  );
  return rows[0]?.at ?? undefined;
}

export async function dueFunctions(db: Queryable, home: string, now: Date): Promise<DueFunction[]> {
  const { rows } = await db.query<DueFunction>(
    `select f.id, f.database_id, f.cron_schedule, f.next_tick_at ${scheduledHere}
        and f.next_tick_at <= $2 order by f.next_tick_at limit 200`,
    [home, now],
  );
  return rows;
}

/** True for exactly one of all who try to take this tick. */
export async function claimTick(
  tx: Queryable,
  functionId: string,
  tickAt: Date,
  nextTickAt: Date,
): Promise<boolean> {
  const { rowCount } = await tx.query(
    'update functions set next_tick_at = $3 where id = $1 and next_tick_at = $2',
    [functionId, tickAt, nextTickAt],
  );
  return rowCount === 1;
}

/** The run of the tick before, if it is still going. */
export async function runningCronRun(
  tx: Queryable,
  functionId: string,
): Promise<string | undefined> {
  const { rows } = await tx.query<{ id: string; status: RunStatus }>(
    `select id, status from function_runs
      where function_id = $1 and trigger_type = 'cron' order by number desc limit 1`,
    [functionId],
  );
  return rows[0]?.status === 'running' ? rows[0].id : undefined;
}

/** Keeps the newest `perFunction` runs and nothing older than `horizon`; keyed ones for a day. */
export async function pruneRuns(db: Queryable, horizon: Date, perFunction: number): Promise<void> {
  await db.query(`delete from function_runs where created_at < $1 and status <> 'running'`, [
    horizon,
  ]);
  await db.query(
    `delete from function_runs r using (
       select id, row_number() over (partition by function_id order by number desc) as place
         from function_runs) ranked
      where ranked.id = r.id and ranked.place > $1 and r.status <> 'running'
        and (r.idempotency_key is null or r.created_at < now() - interval '1 day')`,
    [perFunction],
  );
}
