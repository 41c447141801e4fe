import { addJob } from '../../engine/jobs/jobs.ts';
import type { Metastore } from '../../engine/metastore/metastore.ts';
import { conflict, notFound, unprocessable } from '../../kernel/app-error.ts';
import type { DatabaseRecord } from '../../kernel/database-record.ts';
import { newId } from '../../kernel/ids.ts';
import type { Principal } from '../../kernel/principal.ts';
import type { DatabasesService } from '../databases/index.ts';
import * as store from './store.ts';
import { jobKinds } from './work.ts';

export interface BackupsServiceDeps {
  metastore: Metastore;
  databases: Pick<DatabasesService, 'limitFor'>;
  home: string;
}

export type BackupsService = ReturnType<typeof createBackupsService>;

export function createBackupsService({ metastore, databases, home }: BackupsServiceDeps) {
  function create(databaseId: string, label: string | null, scheduled = false) {
    const id = newId('bkp');
    return metastore.transaction(async (tx) => {
      const row = await store.insertBackup(tx, { id, databaseId, home, label, scheduled });
      await addJob(tx, { home, kind: jobKinds.backUp, subject: id });
      return row;
    });
  }

  return {
    create: (database: DatabaseRecord, label: string | undefined) =>
      create(database.id, label ?? null),

    list: (database: DatabaseRecord) => store.listBackups(metastore, database.id),

    async get(database: DatabaseRecord, id: string) {
      const row = await store.findBackup(metastore, database.id, id);
      if (!row) throw notFound('backup');
      return row;
    },

    /** The object itself goes right afterwards (schema step 0005). */
    async delete(database: DatabaseRecord, id: string): Promise<void> {
      if (!(await store.deleteBackup(metastore, database.id, id))) throw notFound('backup');
    },

    async restore(
      principal: Principal,
      request: { backupId: string; targetName: string; idempotencyKey: string | undefined },
    ) {
      const { backupId, targetName, idempotencyKey } = request;
      const { accountKey } = principal;
      return metastore.transaction(async (tx) => {
        await store.lockAccount(tx, accountKey);
        if (idempotencyKey !== undefined) {
          const earlier = await store.findRestore(tx, accountKey, { idempotencyKey });
          if (earlier && (earlier.backup_id !== backupId || earlier.target_name !== targetName))
            throw conflict('this idempotency_key was used for another restore');
          if (earlier) return earlier;
        }
        const backup = await store.findBackupOfAccount(tx, accountKey, backupId);
        if (!backup) throw notFound('backup');
        if (backup.state !== 'ready') throw conflict(`the backup is ${backup.state}, not ready`);
        if (await store.isNameTaken(tx, accountKey, targetName))
          throw conflict(`a database named "${targetName}" exists already`);
        const limit = databases.limitFor(principal);
        if ((await store.countDatabases(tx, accountKey)) >= limit)
          throw unprocessable(`database quota exceeded: this account may have ${limit} databases`);
        const id = newId('rst');
        const row = await store.insertRestore(tx, {
          id,
          accountKey,
          backupId,
          targetName,
          idempotencyKey: idempotencyKey ?? null,
        });
        await addJob(tx, { home: backup.home, kind: jobKinds.restore, subject: id });
        return row;
      });
    },

    async getRestore(principal: Principal, id: string) {
      const row = await store.findRestore(metastore, principal.accountKey, { id });
      if (!row) throw notFound('restore');
      return row;
    },

    /** Starts a backup of every database of this process; one at work already counts. */
    async backUpAll(label: string): Promise<number> {
      const ids = await store.databasesOf(metastore, home);
      for (const id of ids) await create(id, label, true);
      return ids.length;
    },

    deleteExpired: (horizon: Date) => store.deleteExpired(metastore, home, horizon),
  };
}
