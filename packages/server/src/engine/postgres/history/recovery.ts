// Turns a copy of a data directory into a database of its own: replays the log in its `pg_wal` up
// to a target and leaves on a new timeline.
//
// It runs as a standby without a source, not as an archive recovery: that one would start a process
// a segment. A standby that has not reached its target at the end of the log waits for more, so
// whoever calls makes sure that the log goes beyond it.
import { join } from 'node:path';
import type { Draft, Fleet, RunningDraft, Settings } from '../fleet.ts';
import { writeOwned } from './clone-tree.ts';

export type RecoveryTarget =
  /** As soon as the copy is consistent. */
  | { kind: 'consistent' }
  /** Everything committed up to this instant, microseconds since 1970, and nothing after. */
  | { kind: 'instant'; atMicros: bigint; timeline: number };

/** `max_wal_size`: no checkpoints in between; what they would save is only a second recovery. */
const recoverySettings: Settings = {
  recovery_target_action: 'promote',
  hot_standby: 'off',
  restore_command: '',
  primary_conninfo: '',
  wal_keep_size: '2147483647',
  wal_recycle: 'off',
  max_wal_size: '16GB',
};

/** Replay takes about ten seconds a gigabyte; one that waits for a log that is damaged waits for ever. */
const timeoutMs = 3_600_000;

export async function recover(
  fleet: Fleet,
  draft: Draft,
  target: RecoveryTarget,
  signal?: AbortSignal,
): Promise<RunningDraft> {
  await writeOwned(join(draft.paths.data, 'standby.signal'), '', draft.owner);
  const settings: Settings =
    target.kind === 'consistent'
      ? { recovery_target: 'immediate', recovery_target_timeline: 'current' }
      : {
          recovery_target_time: formatMicros(target.atMicros),
          recovery_target_inclusive: 'on',
          recovery_target_timeline: String(target.timeline),
        };
  const limit = AbortSignal.timeout(timeoutMs);
  const running = await fleet.startDraft(
    draft,
    { ...recoverySettings, ...settings },
    signal ? AbortSignal.any([signal, limit]) : limit,
  );
  try {
    const client = await running.connect();
    try {
      const { rows } = await client.query<{ recovering: boolean }>(
        'select pg_catalog.pg_is_in_recovery() as recovering',
      );
      if (rows[0]!.recovering) throw new Error('the copy is still in recovery');
    } finally {
      await client.end().catch(() => {});
    }
  } catch (error) {
    await running.stop('immediate');
    throw error;
  }
  return running;
}

/** As Postgres reads it, whatever its DateStyle: `2026-11-15 02:30:04.127897+00`. */
export function formatMicros(micros: bigint): string {
  const seconds = micros / 1_000_000n;
  const [date, time] = new Date(Number(seconds) * 1000).toISOString().split('T');
  const fraction = (micros % 1_000_000n).toString().padStart(6, '0');
  return `${date} ${time!.slice(0, 8)}.${fraction}+00`;
}
