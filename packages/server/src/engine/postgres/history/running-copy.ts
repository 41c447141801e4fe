// A consistent copy of a running database without stopping it: what `pg_basebackup` does, with the
// copying done by us. https://www.postgresql.org/docs/current/continuous-archiving.html
//
// These sessions are a superuser's in a database whose owner may set its `search_path` and other
// defaults: every function, type and operator is named with its schema.
import type pg from 'pg';
import { parseLsn, startOfLabel } from './wal.ts';

export interface RunningCopy {
  /** Goes into the copy as `backup_label`. */
  label: string;
  /** The copy needs the log from here on … */
  startLsn: bigint;
  /** … up to here. Its segment is full: the server has gone on to the next one. */
  stopLsn: bigint;
  /** Everything committed up to here is in the copy; microseconds since 1970. */
  stoppedAtMicros: bigint;
}

/** Runs `copy` while the server keeps its files copyable. */
export async function whileCopyable(
  client: pg.Client,
  copy: () => Promise<void>,
): Promise<RunningCopy> {
  // The owner may have set a statement timeout for the database.
  await client.query('set statement_timeout = 0');
  await client.query(`select pg_catalog.pg_backup_start('coppice', fast => true)`);
  let isStopped = false;
  try {
    await copy();
    isStopped = true;
    const { rows } = await client.query<{ label: string; lsn: string }>(
      `select labelfile as label, lsn::pg_catalog.text as lsn
       from pg_catalog.pg_backup_stop(wait_for_archive => false)`,
    );
    const { label, lsn } = rows[0]!;
    return {
      label,
      startLsn: startOfLabel(label),
      stopLsn: parseLsn(lsn),
      stoppedAtMicros: await serverMicros(client),
    };
  } finally {
    if (!isStopped)
      await client
        .query('select pg_catalog.pg_backup_stop(wait_for_archive => false)')
        .catch(() => {}); // The session is gone, and with it the state it had.
  }
}

/** The server's clock, which commits are stamped by: microseconds since 1970. */
export async function serverMicros(client: pg.Client): Promise<bigint> {
  const { rows } = await client.query<{ micros: string }>(
    `select (extract(epoch from pg_catalog.clock_timestamp()) operator(pg_catalog.*) 1000000)
       ::pg_catalog.int8::pg_catalog.text as micros`,
  );
  return BigInt(rows[0]!.micros);
}

const emptied = new Set([
  'pg_wal',
  'pg_replslot',
  'pg_dynshmem',
  'pg_notify',
  'pg_serial',
  'pg_snapshots',
  'pg_stat_tmp',
  'pg_subtrans',
]);
const leftOut =
  /(^|\/)(postmaster\.(pid|opts)|pgsql_tmp[^/]*|pg_internal\.init[^/]*|t\d+_[^/]*|backup_label(\.old)?|tablespace_map(\.old)?|(standby|recovery)\.signal|current_logfiles[^/]*)$/;

/** What a copy of a data directory in use does without, as `pg_basebackup` does. */
export function skippedInCopy(path: string): boolean {
  const slash = path.indexOf('/');
  return (slash !== -1 && emptied.has(path.slice(0, slash))) || leftOut.test(path);
}
