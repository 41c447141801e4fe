// The history of databases: branches of now and of any instant, backups, and what they live on.
//
// A database's history is its bases and its log (bases.ts and wal.ts show them on disk). At any
// moment the log is complete from the start of the oldest base to the last commit, because the
// server keeps all of it until history has moved it. A new base is taken when the log has grown;
// bases and log that no instant within the window needs are removed (upkeep.ts). An idle database
// writes nothing, and a database at rest needs nothing done.
//
// Every branch and every restore is a draft until it has replayed its log, answered once and been
// adopted by the fleet; a crash before that leaves a draft, which the fleet removes.
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { notFound } from '../../../kernel/app-error.ts';
import type { Clock } from '../../../kernel/clock.ts';
import type { Logger } from '../../../kernel/logger.ts';
import { type AddFile, writeBackup } from '../../backup-stream.ts';
import { type HistoryWindow, OutsideHistory } from '../../engine.ts';
import type { Draft, Fleet, FleetHooks, History } from '../fleet.ts';
import { syncFilesystem } from '../sync-filesystem.ts';
import { packInstance, unpackInstance } from './backup.ts';
import { type Base, baseFor, copyRunning, listBases, shareBase } from './bases.ts';
import { createClonePool } from './clone-pool.ts';
import { canShareBlocks, cloneTree } from './clone-tree.ts';
import { createGates } from './gates.ts';
import { type RecoveryTarget, recover } from './recovery.ts';
import { serverMicros } from './running-copy.ts';
import { createUpkeep, type HistoryPolicy, type Upkeep } from './upkeep.ts';
import {
  historySettings,
  listWal,
  parseLsn,
  placeWal,
  segmentAt,
  segmentBytesOf,
  walBetween,
  walDirectories,
} from './wal.ts';

export interface HistoryDeps {
  fleet: Fleet;
  /** Major version of the Postgres that runs here; backups of another one are refused. */
  major: number;
  policy: HistoryPolicy;
  clock: Clock;
  logger: Logger;
}

/** A draft that is ready to replay its log. */
interface Filled {
  target: RecoveryTarget;
  /** Its files are on disk, or recovery, which begins with a label, will see to that itself. */
  isSynced: boolean;
}

export interface PostgresHistory extends History {
  readonly upkeep: Upkeep;
  close(): Promise<void>;
}

export function createHistory(deps: HistoryDeps): PostgresHistory {
  const { fleet, clock } = deps;
  const pool = createClonePool();
  const gates = createGates();
  let shares: Promise<boolean> | undefined;
  const sharesBlocks = () => (shares ??= canShareBlocks(dirname(fleet.paths('any').root)));
  const upkeep = createUpkeep({ ...deps, pool, gates, sharesBlocks });

  const hooks: FleetHooks = {
    settings(id) {
      upkeep.watch(id);
      return historySettings;
    },
  };

  /** Fills a draft and makes it the database `id`, or leaves nothing of it. */
  async function build(
    id: string,
    adminVerifier: string,
    fill: (draft: Draft) => Promise<Filled>,
    signal?: AbortSignal,
  ): Promise<void> {
    pool.warm();
    const draft = await fleet.prepareDraft();
    try {
      const { target, isSynced } = await fill(draft);
      const syncing = isSynced ? Promise.resolve() : syncFilesystem(draft.paths.root);
      syncing.catch(() => {});
      const running = await recover(fleet, draft, target, signal);
      try {
        await syncing;
        signal?.throwIfAborted();
        await fleet.adopt(draft, id, { adminVerifier, running });
      } catch (error) {
        await running.stop('immediate').catch(() => {});
        throw error;
      }
      upkeep.watch(id);
    } catch (error) {
      await fleet.discardDraft(draft);
      throw error;
    }
  }

  /** The parent as it is now, without stopping it. */
  async function copyNow(parentId: string, draft: Draft): Promise<Filled> {
    const parent = fleet.paths(parentId);
    const { owner, paths } = draft;
    await gates.shared(parentId, async () => {
      // Its own history begins with the parent's last base, and the log from there to here.
      const base = (await listBases(fleet, parentId)).at(-1);
      if (!base) throw new Error(`${parentId} has no base`);
      const copying = fleet.withRunning(parentId, (client) =>
        copyRunning(pool, client, parent.data, paths.data, { owner }),
      );
      const [copy] = await allDone([copying, shareBase(pool, base, paths)]);
      const directories = walDirectories(parent);
      const segmentBytes = await segmentBytesOf(directories);
      const segment = (lsn: bigint) => segmentAt(lsn, segmentBytes);
      const log = await listWal(directories);
      const own = walBetween(log, segment(copy.startLsn), segment(copy.stopLsn - 1n), segmentBytes);
      const before = log.filter(
        (file) =>
          file.segment !== undefined &&
          file.segment >= segment(base.startLsn) &&
          file.segment < segment(copy.startLsn),
      );
      await placeWal(pool, 'copy', own, join(paths.data, 'pg_wal'), owner);
      await placeWal(pool, 'link', before, join(paths.history, 'wal'));
    });
    return { target: { kind: 'consistent' }, isSynced: true };
  }

  /** The parent as it was: its last base before that instant, and the log from there to beyond it. */
  async function copyAt(parentId: string, atMicros: bigint, draft: Draft): Promise<Filled> {
    const parent = fleet.paths(parentId);
    const { owner, paths } = draft;
    const mark = await markAfter(parentId, atMicros);
    const isSynced = await gates.shared(parentId, async () => {
      const base = await baseAt(parentId, atMicros);
      const directories = walDirectories(parent);
      const segmentBytes = await segmentBytesOf(directories);
      const log = walBetween(
        await listWal(directories),
        segmentAt(base.startLsn, segmentBytes),
        segmentAt(mark.lsn - 1n, segmentBytes),
        segmentBytes,
      );
      const copying = copyBase(base, draft).then(() =>
        placeWal(pool, 'copy', log, join(paths.data, 'pg_wal'), owner),
      );
      await allDone([copying, shareBase(pool, base, paths)]);
      return !base.isStopped;
    });
    return { target: { kind: 'instant', atMicros, timeline: mark.timeline }, isSynced };
  }

  const copyBase = (base: Base, draft: Draft) =>
    cloneTree(pool, base.data, draft.paths.data, { owner: draft.owner, skip: skippedInBase });

  async function baseAt(id: string, atMicros: bigint): Promise<Base> {
    const bases = await listBases(fleet, id);
    const base = baseFor(bases, atMicros);
    const from = windowStart(bases);
    if (!base || Number(atMicros / 1000n) < from.getTime())
      throw new OutsideHistory({ from, to: clock.now() });
    return base;
  }

  function windowStart(bases: readonly Base[]): Date {
    const oldest = bases[0];
    if (!oldest) return clock.now();
    const reachable = Number((oldest.usableFromMicros + 999n) / 1000n);
    return new Date(Math.max(reachable, clock.now().getTime() - deps.policy.retentionMs));
  }

  /**
   * Leaves a commit after the instant in the log, so that replay sees that the instant has passed.
   * Answers where the log ends with it.
   */
  async function markAfter(
    id: string,
    atMicros: bigint,
  ): Promise<{ lsn: bigint; timeline: number }> {
    return fleet.withRunning(id, async (client) => {
      for (
        let now = await serverMicros(client);
        now <= atMicros;
        now = await serverMicros(client)
      ) {
        const waitMs = Number((atMicros - now) / 1000n) + 1;
        if (waitMs > 2000) throw new OutsideHistory(await window(id));
        await delay(waitMs);
      }
      // On disk when it returns, whatever the database's owner made the default.
      await client.query('set synchronous_commit = local');
      await client.query(`select pg_catalog.pg_logical_emit_message(true, 'coppice', '')`);
      const { rows } = await client.query<{ lsn: string; timeline: number }>(
        `select pg_catalog.pg_current_wal_flush_lsn()::pg_catalog.text as lsn, timeline_id as timeline
         from pg_catalog.pg_control_checkpoint()`,
      );
      return { lsn: parseLsn(rows[0]!.lsn), timeline: rows[0]!.timeline };
    });
  }

  async function window(id: string): Promise<HistoryWindow> {
    const bases = await gates.shared(id, () => listBases(fleet, id));
    return { from: windowStart(bases), to: clock.now() };
  }

  return {
    hooks,
    upkeep,
    history: window,

    async branch(parentId, childId, { adminVerifier, atMicros }) {
      try {
        await build(childId, adminVerifier, (draft) =>
          atMicros === undefined ? copyNow(parentId, draft) : copyAt(parentId, atMicros, draft),
        );
      } catch (error) {
        // Deleted in the middle of it: whatever failed, that is why.
        if (!(await fleet.exists(parentId))) throw notFound('database');
        throw error;
      }
    },

    /** Writes the database, as it is when this ends, to `sink`. */
    async backUp(id, sink, { about, signal }) {
      const header = { ...about, engine: 'postgres', major: deps.major };
      const fill = (add: AddFile) => packInstance({ fleet, gates, id, add, signal });
      await writeBackup(sink, header, fill, signal);
    },

    /** Makes the database `id` of what `backUp` wrote. It has answered once when this returns. */
    async restore(id, source, { adminVerifier, signal }) {
      const fill = async (draft: Draft): Promise<Filled> => {
        await unpackInstance({ fleet, pool, source, draft, major: deps.major, signal });
        return { target: { kind: 'consistent' }, isSynced: true };
      };
      await build(id, adminVerifier, fill, signal);
    },

    async close() {
      await upkeep.close();
      await pool.close();
    },
  };
}

/** As Promise.all, but nothing goes on in the background when it fails. */
async function allDone<A, B>(work: [Promise<A>, Promise<B>]): Promise<[A, B]> {
  await Promise.allSettled(work);
  return Promise.all(work);
}

/** A base's own log is the history's; its template may hold more than a data directory needs. */
function skippedInBase(path: string): boolean {
  return path.startsWith('pg_wal/') || path === 'postmaster.opts';
}
