// Sessions of the service itself on customers' databases: one small pool a database, connected over
// the instance's socket without a password.
//
// - A session is clean when it is handed out: no transaction, no settings, no prepared statements of
//   its last user (unless its users leave nothing behind), and with the defaults that the database
//   and the role have now. One that is not known to be so is closed.
// - A database is held awake only while a session is in use; idle sessions go when it sleeps, and
//   after a while by themselves.
// - At most `limit` sessions a database; whoever comes next waits its turn.
import { connect as connectSocket } from 'node:net';
import { join } from 'node:path';
import pg from 'pg';
import { AppError } from '../kernel/app-error.ts';
import { quoteIdent } from '../kernel/sql-quote.ts';
import { connectAwake } from './connect-awake.ts';
import type { Engine, Lease } from './engine.ts';

export interface SessionOptions {
  /** The role to connect as; `postgres` is the service's own superuser, never a customer's. */
  role: string;
  /** Ends the session, and what runs in it, in the middle. */
  signal?: AbortSignal;
}

export interface Sessions {
  use<T>(
    databaseId: string,
    options: SessionOptions,
    work: (client: pg.Client) => Promise<T>,
  ): Promise<T>;
  close(): Promise<void>;
}

interface Session {
  client: pg.Client;
  role: string;
  /** What the database and role set for new sessions when this one was new. */
  defaults: string;
  connectedAtMs: number;
  idleTimer: NodeJS.Timeout | undefined;
}

interface Pool {
  idle: Session[];
  /** On their way to being idle; whoever wants one of that role waits for it rather than connect. */
  cleaning: { role: string; done: Promise<void> }[];
  inUse: number;
  waiting: (() => void)[];
}

const idleLimitMs = 30_000;
const ageLimitMs = 10 * 60_000;
const cleaningLimitMs = 5_000;
const turnLimitMs = 30_000;

/** `discard: false` is for users that leave no state behind and want to keep prepared statements. */
export function createSessions(
  engine: Pick<Engine, 'wake' | 'onSleep'>,
  { discard = true, limit = 16 }: { discard?: boolean; limit?: number } = {},
): Sessions {
  const pools = new Map<string, Pool>();
  let closed = false;

  engine.onSleep((databaseId) => {
    for (const session of pools.get(databaseId)?.idle.splice(0) ?? []) end(session);
    forgetIfEmpty(databaseId);
  });

  function poolOf(databaseId: string): Pool {
    const pool = pools.get(databaseId) ?? { idle: [], cleaning: [], inUse: 0, waiting: [] };
    pools.set(databaseId, pool);
    return pool;
  }

  function forgetIfEmpty(databaseId: string): void {
    const pool = pools.get(databaseId);
    if (pool && pool.idle.length + pool.inUse + pool.waiting.length === 0) pools.delete(databaseId);
  }

  /** Waits until one more session may be in use, and counts it. */
  async function takeTurn(pool: Pool, signal: AbortSignal | undefined): Promise<void> {
    if (pool.inUse < limit) {
      pool.inUse++;
      return;
    }
    const timeout = AbortSignal.timeout(turnLimitMs);
    const giveUp = signal ? AbortSignal.any([signal, timeout]) : timeout;
    await new Promise<void>((resolve, reject) => {
      // `endTurn` has counted whoever it calls.
      const turn = () => {
        giveUp.removeEventListener('abort', leave);
        resolve();
      };
      const leave = () => {
        pool.waiting.splice(pool.waiting.indexOf(turn), 1);
        reject(
          signal?.aborted
            ? signal.reason
            : new AppError(429, 'all sessions of the database are busy', { retryAfterSeconds: 5 }),
        );
      };
      pool.waiting.push(turn);
      giveUp.addEventListener('abort', leave, { once: true });
    });
  }

  function endTurn(databaseId: string, pool: Pool): void {
    const next = pool.waiting.shift();
    if (next) next();
    else pool.inUse--;
    forgetIfEmpty(databaseId);
  }

  /** An idle session that is as good as a new one, or a new one. */
  async function open(pool: Pool, lease: Lease, role: string): Promise<Session> {
    for (;;) {
      const at = pool.idle.findLastIndex((session) => session.role === role);
      if (at === -1) {
        const soon = pool.cleaning.findIndex((entry) => entry.role === role);
        if (soon === -1) break;
        await pool.cleaning.splice(soon, 1)[0]!.done;
        continue;
      }
      const [session] = pool.idle.splice(at, 1);
      clearTimeout(session!.idleTimer);
      if (await isLikeNew(session!)) return session!;
      end(session!);
    }
    // Those of other roles make room.
    if (pool.idle.length + pool.inUse > limit) {
      const oldest = pool.idle.shift();
      if (oldest) end(oldest);
    }
    return connect(pool, lease, role);
  }

  async function connect(pool: Pool, lease: Lease, role: string): Promise<Session> {
    const client = new pg.Client({
      host: lease.socketDirectory,
      port: lease.port,
      user: role,
      database: 'postgres',
      application_name: 'coppice',
      connectionTimeoutMillis: 10_000,
    });
    client.on('error', () => {});
    await client.connect();
    const session: Session = {
      client,
      role,
      defaults: followsDefaults(role) ? await currentDefaults(client) : '',
      connectedAtMs: Date.now(),
      idleTimer: undefined,
    };
    // One that ends while it is idle (its server crashed, say) is not handed out again.
    client.on('end', () => forget(pool, session));
    return session;
  }

  /** The superuser's sessions take none from the database (schema/database/0001-roles.sql). */
  const followsDefaults = (role: string) => discard && role !== 'postgres';

  async function isLikeNew(session: Session): Promise<boolean> {
    const { client, defaults, connectedAtMs, role } = session;
    if (Date.now() - connectedAtMs > ageLimitMs) return false;
    if (!followsDefaults(role)) return true;
    try {
      return (await currentDefaults(client)) === defaults;
    } catch {
      return false;
    }
  }

  function forget(pool: Pool, session: Session): void {
    clearTimeout(session.idleTimer);
    const at = pool.idle.indexOf(session);
    if (at !== -1) pool.idle.splice(at, 1);
  }

  /** Cleans the session while its user goes on already. */
  function giveBack(pool: Pool, session: Session): Promise<void> {
    const done = isClean(session).then((clean) => {
      const at = pool.cleaning.indexOf(entry);
      if (at !== -1) pool.cleaning.splice(at, 1);
      if (!clean || closed) return end(session);
      session.idleTimer = setTimeout(() => {
        forget(pool, session);
        end(session);
      }, idleLimitMs);
      session.idleTimer.unref();
      pool.idle.push(session);
    });
    const entry = { role: session.role, done };
    pool.cleaning.push(entry);
    return done;
  }

  async function isClean({ client }: Session): Promise<boolean> {
    const limit = setTimeout(() => destroy(client), cleaningLimitMs);
    try {
      if (client.getTransactionStatus() !== 'I') await client.query('rollback');
      if (discard) await client.query('discard all');
      return true;
    } catch {
      return false;
    } finally {
      clearTimeout(limit);
    }
  }

  return {
    async use(databaseId, { role, signal }, work) {
      signal?.throwIfAborted();
      if (closed) throw new Error('sessions are closed');
      const pool = poolOf(databaseId);
      try {
        await takeTurn(pool, signal);
      } catch (error) {
        forgetIfEmpty(databaseId);
        throw error;
      }
      let cleaned: Promise<void> | undefined;
      try {
        const { connection: session, lease } = await connectAwake(engine, databaseId, (held) =>
          open(pool, held, role),
        );
        try {
          return await within(session, lease, signal, work);
        } finally {
          if (signal?.aborted) end(session);
          else cleaned = giveBack(pool, session);
          void Promise.resolve(cleaned).then(() => lease.release());
        }
      } finally {
        void Promise.resolve(cleaned).then(() => endTurn(databaseId, pool));
      }
    },

    async close() {
      closed = true;
      const idle = [...pools.values()].flatMap((pool) => pool.idle.splice(0));
      await Promise.allSettled(idle.map(({ client }) => client.end()));
    },
  };
}

/** Runs `work`; when the signal fires, cancels what runs and cuts the connection. */
async function within<T>(
  { client }: Session,
  lease: Lease,
  signal: AbortSignal | undefined,
  work: (client: pg.Client) => Promise<T>,
): Promise<T> {
  if (!signal) return work(client);
  const abort = () => {
    cancel(client, lease);
    destroy(client);
    // The first request may have overtaken the query that it is about.
    setTimeout(() => cancel(client, lease), 200).unref();
  };
  if (signal.aborted) abort();
  signal.addEventListener('abort', abort, { once: true });
  try {
    return await work(client);
  } catch (error) {
    throw signal.aborted ? signal.reason : error;
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

/** What new sessions of this role start with; different text, different defaults. */
async function currentDefaults(client: pg.Client): Promise<string> {
  const { rows } = await client.query<{ defaults: string }>(
    `select current_user || ' ' || coalesce(pg_catalog.string_agg(xmin::text || ctid::text, ','), '') as defaults
     from pg_catalog.pg_db_role_setting`,
  );
  return rows[0]!.defaults;
}

/** https://www.postgresql.org/docs/current/protocol-message-formats.html, CancelRequest */
function cancel(client: pg.Client, lease: Lease): void {
  const { processID, secretKey } = client as unknown as { processID: number; secretKey: number };
  const request = Buffer.alloc(16);
  request.writeInt32BE(16, 0);
  request.writeInt32BE(80_877_102, 4);
  request.writeInt32BE(processID, 8);
  request.writeInt32BE(secretKey, 12);
  const socket = connectSocket(join(lease.socketDirectory, `.s.PGSQL.${lease.port}`));
  socket.on('error', () => {});
  socket.setTimeout(5_000, () => socket.destroy());
  socket.end(request);
}

function end({ client, idleTimer }: Session): void {
  clearTimeout(idleTimer);
  client.end().catch(() => {});
}

/** Without a word to the server: for a session that is stuck. */
function destroy(client: pg.Client): void {
  const { connection } = client as unknown as { connection: { stream: { destroy(): void } } };
  connection.stream.destroy();
}

/** `set local role` with the name quoted, for sessions that act for another role. */
export const setLocalRole = (role: string) => `set local role ${quoteIdent(role)}`;
