// Sessions for customers' SQL: a few a database, shared by its calls in the order they came.
//
// - A session is clean when it is handed out: `discard all` runs after each use, outside the
//   caller's time. One that `discard all` cannot clean (see `leavesTraces`) is closed instead.
// - A call holds its database awake (a lease) until its session is clean again; idle sessions
//   hold nothing and are closed before the database sleeps.
// - A statement is limited from outside, by cancel requests, so that no SET can lift the limit. A
//   session that was sent one is never used again: the request may arrive late.
import { connectAwake } from '../connect-awake.ts';
import type { Engine, Lease } from '../engine.ts';
import { Backend } from './backend.ts';
import { createGuards, type Guard } from './guards.ts';
import { type BuiltinTypes, loadBuiltinTypes } from './types.ts';

export interface BackendsOptions {
  /** Sessions a database at most; the rest of its `max_connections` is for the gateway. */
  limitPerDatabase: number;
  /** How long a call waits for one of them. */
  queueTimeoutMs: number;
  statementTimeoutMs: number;
  messageLimitBytes: number;
}

export interface Use {
  backend: Backend;
  builtins: BuiltinTypes;
  guard: Guard;
  /** Sessions opened before now may have settings that no longer hold (ALTER ROLE … SET). */
  outdate(): void;
}

export class QueueTimeout extends Error {}
/** Whoever called is gone: there is nobody left to work for. */
export class CallerGone extends Error {}

export interface Backends {
  use<T>(
    databaseId: string,
    options: { role: string; settings?: Record<string, string>; isCallerGone?: () => boolean },
    work: (use: Use) => Promise<T>,
  ): Promise<T>;
  close(): Promise<void>;
}

const connectTimeoutMs = 10_000;
const cleanTimeoutMs = 5_000;
const idleLimitMs = 10_000;
/** Settings of roles and databases are read when a session starts. */
const ageLimitMs = 60_000;

interface Entry {
  backend: Backend;
  role: string;
  generation: number;
  idleSinceMs: number;
}
interface Waiter {
  role: string;
  /** Called with a clean session of that role, or with none when there is room for a new one. */
  serve(entry: Entry | undefined): void;
}
interface Pool {
  idle: Entry[];
  openCount: number;
  waiters: Waiter[];
  generation: number;
}

export function createBackends(
  engine: Pick<Engine, 'wake' | 'onSleep'>,
  options: BackendsOptions,
): Backends {
  const pools = new Map<string, Pool>();
  const builtinsByVersion = new Map<string, BuiltinTypes>();
  const guards = createGuards(options.statementTimeoutMs);
  const sweeper = setInterval(sweep, idleLimitMs / 2).unref();
  let isClosed = false;

  engine.onSleep((databaseId) => {
    const pool = pools.get(databaseId);
    if (pool) for (const entry of [...pool.idle]) entry.backend.destroy();
  });

  function poolOf(databaseId: string): Pool {
    let pool = pools.get(databaseId);
    if (!pool) {
      pool = { idle: [], openCount: 0, waiters: [], generation: 0 };
      pools.set(databaseId, pool);
    }
    return pool;
  }

  function sweep(): void {
    const now = performance.now();
    for (const [databaseId, pool] of pools) {
      for (const entry of [...pool.idle])
        if (now - entry.idleSinceMs > idleLimitMs) entry.backend.close();
      if (pool.openCount === 0 && pool.waiters.length === 0) pools.delete(databaseId);
    }
  }

  function isUsable(pool: Pool, { backend, generation }: Entry): boolean {
    return (
      !backend.closed &&
      !backend.cancelled &&
      generation === pool.generation &&
      performance.now() - backend.connectedAtMs < ageLimitMs
    );
  }

  async function acquire(
    pool: Pool,
    lease: Lease,
    role: string,
    settings: Record<string, string> | undefined,
  ): Promise<Entry> {
    for (let index = pool.idle.length - 1; index >= 0; index--) {
      const entry = pool.idle[index]!;
      if (!isUsable(pool, entry)) entry.backend.close();
      else if (entry.role === role) {
        pool.idle.splice(index, 1);
        return entry;
      }
    }
    if (pool.openCount >= options.limitPerDatabase) {
      const other = pool.idle[0];
      if (other) other.backend.close();
      else {
        const handed = await waitTurn(pool, role);
        if (handed) return handed;
        return connectReserved();
      }
    }
    pool.openCount++;
    return connectReserved();

    /** Opens a session whose place is already counted. */
    async function connectReserved(): Promise<Entry> {
      const { generation } = pool;
      try {
        const backend = await Backend.connect({
          socketDirectory: lease.socketDirectory,
          port: lease.port,
          role,
          ...(settings ? { settings } : {}),
          messageLimitBytes: options.messageLimitBytes,
          timeoutMs: connectTimeoutMs,
        });
        const entry = { backend, role, generation, idleSinceMs: 0 };
        backend.onClosed = () => {
          const at = pool.idle.indexOf(entry);
          if (at >= 0) pool.idle.splice(at, 1);
          vacate(pool);
        };
        return entry;
      } catch (error) {
        vacate(pool);
        throw error;
      }
    }
  }

  /** A place is free: the next in line takes it. */
  function vacate(pool: Pool): void {
    const waiter = pool.waiters.shift();
    if (waiter) waiter.serve(undefined);
    else pool.openCount--;
  }

  function waitTurn(pool: Pool, role: string): Promise<Entry | undefined> {
    return new Promise((resolve, reject) => {
      const waiter: Waiter = {
        role,
        serve(entry) {
          clearTimeout(timer);
          resolve(entry);
        },
      };
      const timer = setTimeout(() => {
        pool.waiters.splice(pool.waiters.indexOf(waiter), 1);
        reject(new QueueTimeout('all sessions of the database are busy'));
      }, options.queueTimeoutMs);
      pool.waiters.push(waiter);
    });
  }

  /** Makes the session as new and passes it on; closes it when that fails. */
  async function recycle(pool: Pool, entry: Entry, isDirty: boolean): Promise<void> {
    const { backend } = entry;
    if (isDirty || isClosed || !isUsable(pool, entry)) return backend.close();
    const deadline = setTimeout(() => backend.destroy(), cleanTimeoutMs);
    const isClean = await backend.clean();
    clearTimeout(deadline);
    if (!isClean) return backend.close();
    if (isClosed || !isUsable(pool, entry)) return backend.close();
    const waiter = pool.waiters.shift();
    if (waiter?.role === entry.role) return waiter.serve(entry);
    if (waiter) {
      // The next in line is another role: this session makes room for it.
      pool.waiters.unshift(waiter);
      return backend.close();
    }
    entry.idleSinceMs = performance.now();
    pool.idle.push(entry);
  }

  /** A handler in the customer's code may catch a cancel request, but not this. */
  async function terminate(lease: Lease, { processId }: Backend): Promise<void> {
    const { socketDirectory, port } = lease;
    const killer = await Backend.connect({
      socketDirectory,
      port,
      role: 'postgres',
      messageLimitBytes: options.messageLimitBytes,
      timeoutMs: connectTimeoutMs,
    });
    await killer.ask(`select pg_terminate_backend(${processId})`);
    killer.close();
  }

  /** The same for all instances of a version, so asked once. */
  async function builtinsOf(backend: Backend): Promise<BuiltinTypes> {
    const builtins = await loadBuiltinTypes((sql) => backend.ask(sql));
    builtinsByVersion.set(backend.serverVersion, builtins);
    return builtins;
  }

  return {
    async use(databaseId, { role, settings, isCallerGone }, work) {
      const pool = poolOf(databaseId);
      const { connection: entry, lease } = await connectAwake(engine, databaseId, (held) =>
        acquire(pool, held, role, settings),
      );
      const { backend } = entry;
      const guard = guards.watch({
        backend,
        isCallerGone,
        terminate: () => terminate(lease, backend),
      });
      try {
        if (isCallerGone?.()) throw new CallerGone('the client went away');
        const builtins =
          builtinsByVersion.get(backend.serverVersion) ?? (await builtinsOf(backend));
        return await work({
          backend,
          builtins,
          guard,
          outdate: () => {
            pool.generation++;
          },
        });
      } finally {
        guard.release();
        recycle(pool, entry, guard.isDirty).finally(() => lease.release());
      }
    },

    async close() {
      isClosed = true;
      clearInterval(sweeper);
      for (const pool of pools.values())
        for (const entry of [...pool.idle]) entry.backend.destroy();
      guards.close();
    },
  };
}
