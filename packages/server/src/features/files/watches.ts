// Who wants to hear of changes to the files, database by database.
//
// The functions of `fs` announce every change with NOTIFY. While a database has watches, one
// connection listens for all of them. It holds no lease: a database with watches sleeps like any
// other, since nothing can change while it does, and the connection comes back when it wakes. What
// may have been missed in between shows in the generation of the files; watchers then get `rescan`.
//
//   silent ──(first watch, or wake)──► connecting ──► listening ──(sleep, crash)──► silent
import type { FileEvent } from '@coppice/contract';
import pg from 'pg';
import { connectAwake } from '../../engine/connect-awake.ts';
import type { Engine, Lease } from '../../engine/engine.ts';
import type { Logger } from '../../kernel/logger.ts';
import { quoteIdent } from '../../kernel/sql-quote.ts';
import * as store from './store.ts';

export interface Watch {
  /** Canonical; '/' for everything. */
  path: string;
  recursive: boolean;
  listener(event: FileEvent): void;
}

export interface Watches {
  /** Resolves once no later change can be missed; gives back how to stop. */
  add(databaseId: string, watch: Watch): Promise<() => void>;
  close(): Promise<void>;
}

interface Hub {
  watches: Set<Watch & { active: boolean }>;
  /** Present while connecting or listening. */
  listening: Promise<pg.Client> | undefined;
  /** Of the files, as far as the watchers have heard. */
  generation: string | undefined;
}

export function createWatches(
  engine: Pick<Engine, 'wake' | 'onSleep' | 'onWake'>,
  logger: Logger,
): Watches {
  const hubs = new Map<string, Hub>();

  engine.onWake((databaseId) => {
    const hub = hubs.get(databaseId);
    if (hub) void listen(databaseId, hub).catch(() => {});
  });
  engine.onSleep((databaseId) => {
    const hub = hubs.get(databaseId);
    if (hub) hangUp(hub);
  });

  function hangUp(hub: Hub): Promise<void> {
    const client = hub.listening;
    hub.listening = undefined;
    return Promise.resolve(client?.then((it) => it.end())).catch(() => {});
  }

  function listen(databaseId: string, hub: Hub): Promise<pg.Client> {
    if (hub.listening) return hub.listening;
    const listening = connect(databaseId, hub);
    hub.listening = listening;
    listening.then(
      (client) =>
        client.once('end', () => {
          if (hub.listening !== listening) return;
          hub.listening = undefined;
          // Not asleep, but cut off: whatever was missed shows when it listens again.
          if (hubs.get(databaseId) === hub) void listen(databaseId, hub).catch(() => {});
        }),
      (error) => {
        logger.debug({ err: error, databaseId }, 'could not listen for changes of the files');
        if (hub.listening === listening) hub.listening = undefined;
      },
    );
    return listening;
  }

  async function connect(databaseId: string, hub: Hub): Promise<pg.Client> {
    const { connection, lease } = await connectAwake(engine, databaseId, (held) =>
      startListening(held, hub),
    );
    lease.release();
    return connection;
  }

  async function startListening(lease: Lease, hub: Hub): Promise<pg.Client> {
    const client = new pg.Client({
      host: lease.socketDirectory,
      port: lease.port,
      user: 'postgres',
      database: 'postgres',
      application_name: 'coppice files',
      connectionTimeoutMillis: 10_000,
      query_timeout: 10_000,
    });
    client.on('error', () => {});
    client.on('notification', ({ payload = '' }) => {
      const [, generation, type = '', path = ''] = /^(\d+) (\w+) (.*)$/s.exec(payload) ?? [];
      hub.generation = generation;
      publish(hub, toEvent(type, path));
    });
    try {
      await client.connect();
      await client.query(`listen ${quoteIdent(await store.channel(client))}`);
      const generation = await store.generation(client);
      if (hub.generation !== undefined && hub.generation !== generation)
        for (const watch of hub.watches) watch.listener({ type: 'rescan', path: watch.path });
      hub.generation = generation;
      return client;
    } catch (error) {
      client.end().catch(() => {});
      throw error;
    }
  }

  return {
    async add(databaseId, watch) {
      const hub = hubs.get(databaseId) ?? {
        watches: new Set(),
        listening: undefined,
        generation: undefined,
      };
      hubs.set(databaseId, hub);
      const added = { ...watch, active: false };
      hub.watches.add(added);
      const remove = () => {
        hub.watches.delete(added);
        if (hub.watches.size > 0 || hubs.get(databaseId) !== hub) return;
        hubs.delete(databaseId);
        void hangUp(hub);
      };
      try {
        const client = await listen(databaseId, hub);
        // After this, all that happened before has been heard: none of it is news to the new watch.
        await client.query('select');
        added.active = true;
      } catch (error) {
        remove();
        throw error;
      }
      return remove;
    },

    async close() {
      const all = [...hubs.values()];
      hubs.clear();
      await Promise.all(all.map(hangUp));
    },
  };
}

/** What `coppice.fs_notify` says: a path, or two with `//` between them for a rename. */
function toEvent(type: string, path: string): FileEvent {
  if (type !== 'renamed') return { type: type as 'created', path: path || '/' };
  const parting = path.indexOf('//');
  return { type, from: path.slice(0, parting), path: path.slice(parting + 2) };
}

function publish(hub: Hub, event: FileEvent): void {
  for (const watch of hub.watches)
    if (watch.active && concerns(watch, event)) watch.listener(event);
}

/** A change at the watched path or below it, or the end of a directory that holds it. */
function concerns({ path: watched, recursive }: Watch, event: FileEvent): boolean {
  const paths = event.type === 'renamed' ? [event.from, event.path] : [event.path];
  const prefix = watched === '/' ? '/' : `${watched}/`;
  return paths.some((path) => {
    if (path === watched) return true;
    if (path.startsWith(prefix)) return recursive || !path.slice(prefix.length).includes('/');
    return event.type !== 'modified' && watched.startsWith(`${path}/`);
  });
}
