// Keeps histories short to replay and bounded on disk: takes a new base of a running database when
// its log has grown, and removes what no instant within the window needs.
//
// The rule for removal: of the bases that are older than the window, only the newest is needed, and
// of the log only what comes after the oldest base that stays. A history that is larger than it may
// be loses its oldest instants, down to one base.
import { readdir, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Clock } from '../../../kernel/clock.ts';
import type { Logger } from '../../../kernel/logger.ts';
import type { Fleet } from '../fleet.ts';
import { type Base, clearLeftovers, listBases, removeBase, takeBase } from './bases.ts';
import type { ClonePool } from './clone-pool.ts';
import { diskBytes } from './clone-tree.ts';
import type { Gates } from './gates.ts';
import { listWal, moveWal, segmentAt, segmentBytesOf, walDirectories } from './wal.ts';

export interface HistoryPolicy {
  /** How far back a branch can be taken. */
  retentionMs: number;
  /** A new base after this much log; replay to any instant takes at most about as much. */
  baseEveryBytes: number;
  /** What the history of one database may take beyond the size of the database itself. */
  limitBytes: number;
  /** How often running databases are looked at. */
  checkEveryMs: number;
  /** How often all of them are. */
  sweepEveryMs: number;
}

export interface HistoryStats {
  basesTaken: number;
  basesFailed: number;
  basesRemoved: number;
  segmentsRemoved: number;
  /** As the last sweep found them. */
  bases: number;
  walBytes: number;
}

export interface UpkeepDeps {
  fleet: Fleet;
  pool: ClonePool;
  gates: Gates;
  policy: HistoryPolicy;
  clock: Clock;
  logger: Logger;
  sharesBlocks: () => Promise<boolean>;
}

export type Upkeep = ReturnType<typeof createUpkeep>;

/** After a failure a database is left alone for a while: the next try would likely fail too. */
const pauseAfterFailureMs = 60_000;

export function createUpkeep(deps: UpkeepDeps) {
  const { fleet, pool, gates, policy, clock, logger } = deps;
  const watched = new Set<string>();
  const pausedUntil = new Map<string, number>();
  const closing = new AbortController();
  const stats: HistoryStats = {
    basesTaken: 0,
    basesFailed: 0,
    basesRemoved: 0,
    segmentsRemoved: 0,
    bases: 0,
    walBytes: 0,
  };
  let current: Promise<void> = Promise.resolve();
  const timers: NodeJS.Timeout[] = [];

  /** One piece of upkeep at a time: it must not be felt. */
  function inTurn(work: () => Promise<void>): Promise<void> {
    current = current
      .then(() => (closing.signal.aborted ? undefined : work()))
      .catch((error) => {
        if (!closing.signal.aborted) logger.error({ err: error }, 'upkeep of histories failed');
      });
    return current;
  }

  async function check(): Promise<void> {
    for (const id of watched) {
      if (closing.signal.aborted) return;
      if (!fleet.isAwake(id)) watched.delete(id);
      else if ((pausedUntil.get(id) ?? 0) <= clock.now().getTime()) await renewIfGrown(id);
    }
  }

  async function renewIfGrown(id: string): Promise<void> {
    try {
      pausedUntil.delete(id);
      if (await hasGrown(id)) await renew(id);
    } catch (error) {
      // One that has been deleted meanwhile is nothing to report.
      if (closing.signal.aborted || !(await fleet.exists(id))) return;
      stats.basesFailed++;
      pausedUntil.set(id, clock.now().getTime() + pauseAfterFailureMs);
      logger.error({ err: error, database: id }, 'could not take a base');
    }
  }

  async function hasGrown(id: string): Promise<boolean> {
    const { data } = fleet.paths(id);
    const directory = join(data, 'pg_wal');
    // Only the log since the last base is here; everything before has been moved away.
    const segments = (await listWal([directory])).filter(({ segment }) => segment !== undefined);
    if (segments.length === 0) return false;
    const bytes = segments.length * (await segmentBytesOf([directory]));
    if (bytes < policy.baseEveryBytes) return false;
    // Where a base is a full copy, copying must not cost more than the log itself did.
    return (await deps.sharesBlocks()) || bytes >= (await contentBytes(data));
  }

  /** Takes a base now, moves the log before it away and removes what is no longer needed. */
  async function renew(id: string): Promise<void> {
    const paths = fleet.paths(id);
    const { startLsn } = await fleet.withRunning(id, (client) =>
      takeBase(pool, client, paths, closing.signal),
    );
    stats.basesTaken++;
    await gates.exclusive(id, async () => {
      const segmentBytes = await segmentBytesOf(walDirectories(paths));
      // The base began with a checkpoint: the server itself needs nothing before it.
      await moveWal(paths, segmentAt(startLsn, segmentBytes));
      await prune(id);
    });
  }

  /** Within the gate of the database. */
  async function prune(id: string): Promise<void> {
    const paths = fleet.paths(id);
    const bases = await listBases(fleet, id);
    const kept = await keptBases(id, bases);
    const oldest = kept[0];
    if (!oldest || kept.length === bases.length) return;
    for (const { name } of bases)
      if (name !== undefined && !kept.some((base) => base.name === name)) {
        await removeBase(paths, name);
        stats.basesRemoved++;
      }
    // The oldest first: what a crash leaves is still one unbroken log.
    const directory = join(paths.history, 'wal');
    const keepFrom = segmentAt(oldest.startLsn, await segmentBytesOf(walDirectories(paths)));
    for (const { name, segment } of await listWal([directory]))
      if (segment !== undefined && segment < keepFrom) {
        await rm(join(directory, name));
        stats.segmentsRemoved++;
      }
  }

  async function keptBases(id: string, bases: readonly Base[]): Promise<Base[]> {
    const windowStart = BigInt(clock.now().getTime() - policy.retentionMs) * 1000n;
    const newestBefore = bases.findLastIndex((base) => base.usableFromMicros <= windowStart);
    let kept = bases.slice(Math.max(0, newestBefore));
    while (kept.length > 1 && (await exceedsLimit(id, kept))) kept = kept.slice(1);
    return kept;
  }

  async function exceedsLimit(id: string, bases: readonly Base[]): Promise<boolean> {
    const { data } = fleet.paths(id);
    let bytes = await walBytesFrom(id, bases[0]!);
    if (!(await deps.sharesBlocks()))
      for (const { name, data: base } of bases)
        if (name !== undefined) bytes += await diskBytes(base);
    return bytes > policy.limitBytes && bytes > policy.limitBytes + (await contentBytes(data));
  }

  /** A data directory without its log. */
  const contentBytes = async (data: string) =>
    (await diskBytes(data)) - (await diskBytes(join(data, 'pg_wal')));

  async function walBytesFrom(id: string, base: Base): Promise<number> {
    const directories = walDirectories(fleet.paths(id));
    const segmentBytes = await segmentBytesOf(directories);
    const first = segmentAt(base.startLsn, segmentBytes);
    const log = await listWal(directories);
    return log.filter(({ segment }) => (segment ?? -1n) >= first).length * segmentBytes;
  }

  /** Looks at every database that has a history of its own, awake or not. */
  async function sweep(): Promise<void> {
    const found = { bases: 0, walBytes: 0 };
    const instances = dirname(fleet.paths('any').root);
    for (const id of await readdir(instances)) {
      if (closing.signal.aborted) return;
      const paths = fleet.paths(id);
      try {
        await gates.exclusive(id, async () => {
          const own = await readdir(join(paths.history, 'bases'));
          if (own.some((name) => name.startsWith('.'))) await clearLeftovers(paths);
          await prune(id);
          found.bases += (await readdir(join(paths.history, 'bases'))).length;
          found.walBytes += await diskBytes(join(paths.history, 'wal'));
        });
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'ENOENT') continue;
        logger.error({ err: error, database: id }, 'could not prune a history');
      }
    }
    Object.assign(stats, found);
  }

  function every(intervalMs: number, work: () => Promise<void>): void {
    // A piece of work that takes longer than the interval is not piled up.
    let isDue = false;
    const timer = setInterval(() => {
      if (isDue) return;
      isDue = true;
      void inTurn(work).finally(() => {
        isDue = false;
      });
    }, intervalMs);
    timer.unref();
    timers.push(timer);
  }

  return {
    /** From now on this database is looked at while it runs. */
    watch: (id: string) => void watched.add(id),
    start(): void {
      void inTurn(sweep);
      every(policy.checkEveryMs, check);
      every(policy.sweepEveryMs, sweep);
    },
    check: () => inTurn(check),
    sweep: () => inTurn(sweep),
    renew: (id: string) => inTurn(() => renew(id)),
    stats: (): HistoryStats => ({ ...stats }),
    async close(): Promise<void> {
      closing.abort(new Error('the service is stopping'));
      for (const timer of timers) clearInterval(timer);
      await current;
    },
  };
}
