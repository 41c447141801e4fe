// Backups by the clock: at every tick of a cron expression each database is backed up, and
// scheduled backups that are old enough are removed. Off unless an expression is configured.
import { Cron } from 'croner';
import type { Clock } from '../../kernel/clock.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { BackupsService } from './service.ts';

export interface BackupSchedule {
  /** Five fields, or six with seconds; UTC. One that is none throws. */
  cron: string;
  /** 0: for ever. */
  keepDays: number;
}

export function startSchedule(deps: {
  service: Pick<BackupsService, 'backUpAll' | 'deleteExpired'>;
  schedule: BackupSchedule;
  clock: Clock;
  logger: Logger;
}): { stop(): void } {
  const { service, schedule, clock, logger } = deps;
  const keepMs = schedule.keepDays * 24 * 3_600_000;
  const cron = new Cron(
    schedule.cron,
    {
      timezone: 'UTC',
      protect: true,
      unref: true,
      catch: (error) => logger.error({ err: error }, 'scheduled backups failed'),
    },
    async () => {
      const started = await service.backUpAll('scheduled');
      const removed =
        keepMs === 0 ? 0 : await service.deleteExpired(new Date(clock.now().getTime() - keepMs));
      logger.info({ started, removed }, 'scheduled backups');
    },
  );
  return { stop: () => cron.stop() };
}
