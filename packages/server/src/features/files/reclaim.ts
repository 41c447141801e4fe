// Postgres keeps the room of removed content until a vacuum. Autovacuum sees to that while a
// database is awake; one that sleeps soon after a large removal, or an upload that was cut off,
// would keep it for long. So a while after such operations we look, and vacuum if it is worth it.
import type { Sessions } from '../../engine/sessions.ts';
import type { Logger } from '../../kernel/logger.ts';
import * as store from './store.ts';

export interface Reclaim {
  /** Something large may have become free. */
  after(databaseId: string): void;
  close(): void;
}

const delayMs = 2_000;
/** Of 2 kB each. */
const worthwhileDeadRows = 4_000;

export function createReclaim(sessions: Sessions, logger: Logger): Reclaim {
  const timers = new Map<string, NodeJS.Timeout>();

  async function look(databaseId: string): Promise<void> {
    timers.delete(databaseId);
    try {
      await sessions.use(databaseId, { role: 'postgres' }, async (client) => {
        if ((await store.deadChunkRows(client)) >= worthwhileDeadRows) await store.vacuum(client);
      });
    } catch (error) {
      // Only room is at stake, and autovacuum comes by another time.
      logger.debug({ err: error, databaseId }, 'could not vacuum the files');
    }
  }

  return {
    after(databaseId) {
      if (!timers.has(databaseId))
        timers.set(databaseId, setTimeout(look, delayMs, databaseId).unref());
    },
    close() {
      for (const timer of timers.values()) clearTimeout(timer);
      timers.clear();
    },
  };
}
