import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { startService } from '../support/service.ts';

test('a schedule backs up every database', { timeout: 150_000 }, async () => {
  const service = await startService({
    flags: ['--backup-schedule', '*/3 * * * * *', '--pool-size', '2'],
  });
  try {
    const account = await service.api.register();
    for (const { id } of [await account.database(), await account.database()])
      for (;;) {
        const { body } = await account.get(`/customer/databases/${id}/backups`);
        const ready = body.filter((backup: { state: string }) => backup.state === 'ready');
        if (ready.length > 0) {
          expect(ready[0]).toMatchObject({ label: 'scheduled', error: null });
          break;
        }
        await delay(100);
      }
  } finally {
    await service.stop();
  }
});

test('a schedule that is none is refused at start', { timeout: 60_000 }, async () => {
  await expect(startService({ flags: ['--backup-schedule', 'every night'] })).rejects.toThrow(
    /--backup-schedule/,
  );
});
