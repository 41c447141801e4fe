// Backups and restores. A backup is a row, a job and one object in a store that need not share
// anything with the database: not its directory, not its volume. A restore is a row and a job, and
// in the end a database like any other.
import { operations } from '@coppice/contract';
import type { JobHandler } from '../../engine/jobs/jobs.ts';
import type { Clock } from '../../kernel/clock.ts';
import type { Logger } from '../../kernel/logger.ts';
import { type Route, route } from '../../kernel/route.ts';
import type { MadeDatabase } from '../databases/index.ts';
import { type DatabaseOwner, restoreStored } from './operator.ts';
import { type BackupSchedule, startSchedule } from './schedule.ts';
import { type BackupsServiceDeps, createBackupsService } from './service.ts';
import { type BackupWorkDeps, createBackupWork } from './work.ts';

export { type BackupStore, createDirectoryStore } from './backup-store.ts';
export { listStored, type StoredBackup, verifyStored } from './operator.ts';

export function createBackups(deps: BackupsServiceDeps & BackupWorkDeps): {
  routes: Route[];
  handlers: Record<string, JobHandler>;
  /** A database from an object of the store, known to the control database or not. */
  restoreStored(owner: DatabaseOwner, backupId: string, name: string): Promise<MadeDatabase>;
  startSchedule(schedule: BackupSchedule, clock: Clock, logger: Logger): { stop(): void };
} {
  const service = createBackupsService(deps);
  const { backups, restores } = operations;
  return {
    handlers: createBackupWork(deps),
    restoreStored: (owner, backupId, name) => restoreStored(deps, owner, backupId, name),
    startSchedule: (schedule, clock, logger) => startSchedule({ service, schedule, clock, logger }),
    routes: [
      route(backups.create, ({ database, body }) => service.create(database, body.label)),
      route(backups.list, ({ database }) => service.list(database)),
      route(backups.get, ({ database, params }) => service.get(database, params.backup_id)),
      route(backups.delete, async ({ database, params }) => {
        await service.delete(database, params.backup_id);
        return { message: `backup ${params.backup_id} has been deleted` };
      }),
      route(restores.create, ({ principal, body }) =>
        service.restore(principal, {
          backupId: body.backup_id,
          targetName: body.target_name,
          idempotencyKey: body.idempotency_key,
        }),
      ),
      route(restores.get, ({ principal, params }) =>
        service.getRestore(principal, params.restore_id),
      ),
    ],
  };
}
