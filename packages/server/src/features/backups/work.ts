// What the jobs of this feature do. Each can be cut off anywhere and run again.
import { readBackup } from '../../engine/backup-stream.ts';
import type { Engine } from '../../engine/engine.ts';
import type { JobHandler } from '../../engine/jobs/jobs.ts';
import type { Metastore } from '../../engine/metastore/metastore.ts';
import { AppError } from '../../kernel/app-error.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { DatabasesService } from '../databases/index.ts';
import type { BackupStore } from './backup-store.ts';
import * as store from './store.ts';

export interface BackupWorkDeps {
  metastore: Metastore;
  engine: Pick<Engine, 'backUp' | 'restore'>;
  databases: Pick<DatabasesService, 'make'>;
  backupStore: BackupStore;
  logger: Logger;
}

export const jobKinds = {
  backUp: 'back-up',
  removeBackup: 'remove-backup',
  restore: 'restore',
} as const;

export function createBackupWork(deps: BackupWorkDeps): Record<string, JobHandler> {
  const { metastore, engine, databases, backupStore, logger } = deps;

  async function backUp(id: string, signal: AbortSignal): Promise<void> {
    const subject = await store.findSubject(metastore, id);
    if (!subject) return backupStore.delete(id);
    if (subject.state !== 'creating') return;
    try {
      await backupStore.put(id, (sink) =>
        engine.backUp(subject.databaseId, sink, { about: aboutOf(subject), signal }),
      );
      // Only what has been read back, all of it, counts.
      const { sizeBytes, sha256 } = await readBackup(await backupStore.open(id), {}, signal);
      const wanted = await store.finishBackup(metastore, id, { sizeBytes, sha256 });
      if (!wanted) await backupStore.delete(id);
    } catch (error) {
      if (signal.aborted) throw error;
      logger.error({ err: error, backup: id }, 'a backup failed');
      await backupStore.delete(id).catch(() => {});
      await store.finishBackup(metastore, id, { error: reasonOf(error) });
    }
  }

  async function restore(id: string, signal: AbortSignal): Promise<void> {
    const task = await store.findRestoreTask(metastore, id);
    if (!task) return;
    try {
      const source = await checkedSource(task.backupId, signal);
      await databases.make(
        task,
        { name: task.targetName },
        (databaseId, adminVerifier) =>
          engine.restore(databaseId, source, { adminVerifier, signal }),
        async (tx, databaseId) => {
          if (!(await store.finishRestore(tx, id, { databaseId })))
            throw new Error('the restore is no longer wanted');
        },
      );
    } catch (error) {
      if (signal.aborted) throw error;
      logger.error({ err: error, restore: id }, 'a restore failed');
      await store.finishRestore(metastore, id, { error: reasonOf(error) });
    }
  }

  /** The object as a stream, after all of it has been found to be what was stored. */
  async function checkedSource(backupId: string, signal: AbortSignal) {
    const expected = await store.digestOf(metastore, backupId);
    if (expected === undefined) throw new Error('the backup is gone');
    const { sha256 } = await readBackup(await backupStore.open(backupId), {}, signal);
    if (sha256 !== expected)
      throw new Error(`backup ${backupId} is not the one that was stored: its digest differs`);
    return backupStore.open(backupId);
  }

  return {
    [jobKinds.backUp]: {
      run: backUp,
      async giveUp(id, reason) {
        await backupStore.delete(id);
        await store.finishBackup(metastore, id, { error: reason });
      },
    },
    [jobKinds.removeBackup]: {
      run: (id) => backupStore.delete(id),
      async giveUp(id, reason) {
        logger.error({ backup: id, reason }, 'the object of a deleted backup stays in the store');
      },
    },
    [jobKinds.restore]: {
      run: restore,
      async giveUp(id, reason) {
        await store.finishRestore(metastore, id, { error: reason });
      },
    },
  };
}

function aboutOf(subject: store.BackupSubject) {
  return {
    backup_id: subject.id,
    database_id: subject.databaseId,
    database_name: subject.databaseName,
    region: subject.region,
    customer_id: subject.customerId,
    label: subject.label,
    created_at: subject.createdAt.toISOString(),
  };
}

/** In words for the customer; paths and addresses of this machine are none of theirs. */
function reasonOf(error: unknown): string {
  if (error instanceof AppError) return error.message;
  const { name, message, code } = error as NodeJS.ErrnoException;
  if (name === 'DamagedBackup' || name === 'MissingBackup') return message;
  if (code === 'ENOSPC') return 'no space left on the volume';
  return code === undefined && !message.includes('/') ? message : 'internal error';
}
