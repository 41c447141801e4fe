// Connecting to a database that may be dying at this moment: its server was killed and nobody has
// noticed yet, or it is recovering from the crash of one of its processes. Both pass within moments,
// so whoever connects tries again instead of failing.
import { setTimeout as delay } from 'node:timers/promises';
import type { Engine, Lease } from './engine.ts';

/** Shutting down, crashed, starting up. https://www.postgresql.org/docs/current/errcodes-appendix.html */
const passing = new Set([
  '57P01',
  '57P02',
  '57P03',
  'ECONNREFUSED',
  'ECONNRESET',
  'ENOENT',
  'EPIPE',
]);
/** A connection that was cut while it was made, in the words of `pg` and of wire/backend.ts. */
const cut = /^(?:Connection terminated|server closed the connection)/;
const patienceMs = 10_000;

export interface AwakeConnection<T> {
  connection: T;
  /** Released by the caller, when the connection has ended. */
  lease: Lease;
}

/** Wakes the database and connects to it; what `connect` throws is thrown if it does not pass. */
export async function connectAwake<T>(
  engine: Pick<Engine, 'wake'>,
  databaseId: string,
  connect: (lease: Lease) => Promise<T>,
): Promise<AwakeConnection<T>> {
  const deadline = Date.now() + patienceMs;
  for (;;) {
    const lease = await engine.wake(databaseId);
    try {
      return { connection: await connect(lease), lease };
    } catch (error) {
      lease.release();
      const passes = lease.signal.aborted || isPassing(error as NodeJS.ErrnoException);
      if (!passes || Date.now() > deadline) throw error;
    }
    await untilAborted(lease.signal, 20);
  }
}

const isPassing = ({ code, message }: NodeJS.ErrnoException) =>
  code === undefined ? cut.test(message) : passing.has(code);

/** The news of a server's end is a moment behind its end. */
async function untilAborted(signal: AbortSignal, timeoutMs: number): Promise<void> {
  if (!signal.aborted) await delay(timeoutMs, undefined, { signal }).catch(() => {});
}
