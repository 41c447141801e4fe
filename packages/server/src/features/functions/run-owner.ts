// Says to the other processes that this one is alive: it holds an advisory lock in the control
// database for as long as it runs, on a connection of its own. The lock of a process that was
// killed is gone the moment its connection is, and its unfinished runs are known to be dead.
import pg from 'pg';
import type { Logger } from '../../kernel/logger.ts';

export interface RunOwner {
  readonly id: string;
  start(): Promise<void>;
  stop(): Promise<void>;
}

const retryMs = 1_000;

export function createRunOwner(deps: {
  id: string;
  connection: pg.ClientConfig;
  logger: Logger;
}): RunOwner {
  let client: pg.Client | undefined;
  let stopped = false;
  let timer: NodeJS.Timeout | undefined;

  async function connect(): Promise<void> {
    const next = new pg.Client({ ...deps.connection, keepAlive: true });
    next.on('error', () => {});
    next.on('end', () => {
      if (stopped || next !== client) return;
      deps.logger.warn('lost the lock that says this process is alive; taking it again');
      client = undefined;
      retry();
    });
    await next.connect();
    await next.query('select pg_advisory_lock(hashtextextended($1, 8))', [deps.id]);
    // Locked first: one that is listed and not locked is dead.
    await next.query('insert into function_run_owners (id) values ($1) on conflict do nothing', [
      deps.id,
    ]);
    client = next;
    if (stopped) await next.end();
  }

  function retry(): void {
    timer = setTimeout(() => {
      if (!stopped) connect().catch(retry);
    }, retryMs);
    timer.unref();
  }

  return {
    id: deps.id,
    start: connect,
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await client?.end().catch(() => {});
    },
  };
}
