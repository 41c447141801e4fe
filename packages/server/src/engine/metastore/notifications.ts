// One LISTEN connection to the control database. Caches trust themselves only while it is alive:
// `epoch` changes whenever notifications may have been missed, and is null while none arrive.
import pg from 'pg';
import type { Logger } from '../../kernel/logger.ts';

export interface Notifications {
  /** Same value: nothing was missed in between. `null`: the listener is down; trust nothing. */
  readonly epoch: number | null;
  on(channel: string, listener: (payload: string) => void): void;
  start(): Promise<void>;
  stop(): Promise<void>;
}

const heartbeatMs = 5_000;

export function createNotifications(deps: {
  connection: pg.ClientConfig;
  logger: Logger;
}): Notifications {
  const listeners = new Map<string, ((payload: string) => void)[]>();
  let client: pg.Client | undefined;
  let epoch: number | null = null;
  let generation = 0;
  let stopped = false;
  let timer: NodeJS.Timeout | undefined;
  // One statement at a time on the one connection.
  let turn: Promise<unknown> = Promise.resolve();
  const ask = (on: pg.Client, sql: string) => {
    turn = turn.then(() => on.query(sql)).catch(() => on === client && lost());
    return turn;
  };
  const listen = (on: pg.Client, channel: string) => ask(on, `listen "${channel}"`);

  /** Until every LISTEN is answered a notification could pass unseen. */
  async function trustFrom(current: pg.Client): Promise<void> {
    epoch = null;
    const mine = turn;
    await mine;
    if (current === client && mine === turn && !stopped) epoch = ++generation;
  }

  async function connect(): Promise<void> {
    const next = new pg.Client({ ...deps.connection, keepAlive: true });
    next.on('notification', ({ channel, payload }) => {
      for (const listener of listeners.get(channel) ?? []) listener(payload ?? '');
    });
    next.on('error', () => {});
    next.on('end', () => {
      if (next === client) lost();
    });
    await next.connect();
    client = next;
    turn = Promise.resolve();
    for (const channel of listeners.keys()) void listen(next, channel);
    await trustFrom(next);
    if (next === client) beat(next);
  }

  /** A dead network shows as silence, not as an error: ask, and give up on no answer. */
  function beat(current: pg.Client): void {
    timer = setTimeout(async () => {
      const deadline = setTimeout(() => current === client && lost(), heartbeatMs);
      try {
        await ask(current, 'select 1');
        if (current === client) beat(current);
      } finally {
        clearTimeout(deadline);
      }
    }, heartbeatMs);
    timer.unref();
  }

  function lost(): void {
    epoch = null;
    clearTimeout(timer);
    const dead = client;
    client = undefined;
    dead?.end().catch(() => {});
    if (stopped) return;
    deps.logger.warn('lost the notifications of the control database');
    retry(50);
  }

  function retry(delayMs: number): void {
    timer = setTimeout(() => {
      if (!stopped) connect().catch(() => retry(Math.min(delayMs * 2, 2_000)));
    }, delayMs);
  }

  return {
    get epoch() {
      return epoch;
    },
    on(channel, listener) {
      const known = listeners.get(channel);
      if (known) known.push(listener);
      else {
        listeners.set(channel, [listener]);
        if (!client) return;
        void listen(client, channel);
        void trustFrom(client);
      }
    },
    start: connect,
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await client?.end().catch(() => {});
    },
  };
}
