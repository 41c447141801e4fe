// Slows guessing: failed logins to one database from one address are counted, and the count runs
// down with time. At the limit nobody gets in from there, the right secret or not, until it has run
// down by one. Few attempts are checked at once, so that many begun together cannot outrun the count.
import { isIPv6 } from 'node:net';
import type { Clock } from '../../kernel/clock.ts';
import { LoginError } from '../../kernel/login.ts';

export interface FailedLogins {
  /** Runs `check`; a LoginError for a wrong secret counts. */
  attempt<T>(databaseId: string, address: string, check: () => Promise<T>): Promise<T>;
}

interface Tally {
  failures: number;
  atMs: number;
  running: number;
  waiting: (() => void)[];
}

const maxAtOnce = 8;
const maxTallies = 50_000;

export function createFailedLogins(
  clock: Clock,
  limit: { burst: number; perSecond: number },
): FailedLogins {
  const tallies = new Map<string, Tally>();

  /** The tally as of now. */
  function tallyOf(key: string): Tally {
    let tally = tallies.get(key);
    const nowMs = clock.now().getTime();
    if (!tally) {
      if (tallies.size >= maxTallies) forgetOld(nowMs);
      tally = { failures: 0, atMs: nowMs, running: 0, waiting: [] };
      tallies.set(key, tally);
    }
    tally.failures = failuresAt(tally, nowMs);
    tally.atMs = nowMs;
    return tally;
  }
  const failuresAt = (tally: Tally, nowMs: number) =>
    Math.max(0, tally.failures - (Math.max(0, nowMs - tally.atMs) / 1000) * limit.perSecond);

  function forgetOld(nowMs: number): void {
    for (const [key, tally] of tallies)
      if (tally.running === 0 && failuresAt(tally, nowMs) === 0) tallies.delete(key);
  }

  function refuseIfFull(tally: Tally): void {
    if (tally.failures + 1 <= limit.burst) return;
    const seconds = Math.ceil((tally.failures + 1 - limit.burst) / limit.perSecond);
    throw new LoginError(
      'too_many_failures',
      `too many failed logins from this address; try again in ${seconds} s`,
    );
  }

  return {
    async attempt(databaseId, address, check) {
      const key = `${databaseId}/${networkOf(address)}`;
      const tally = tallyOf(key);
      refuseIfFull(tally);
      if (tally.running >= maxAtOnce) await new Promise<void>((go) => tally.waiting.push(go));
      else tally.running++;
      try {
        refuseIfFull(tallyOf(key));
        return await check();
      } catch (error) {
        if (error instanceof LoginError && error.reason === 'wrong_secret') tallyOf(key).failures++;
        throw error;
      } finally {
        const next = tally.waiting.shift();
        if (next) next();
        else {
          tally.running--;
          if (tally.running === 0 && tally.failures === 0) tallies.delete(key);
        }
      }
    },
  };
}

/** One who has an IPv6 address has a whole /64 of them. */
function networkOf(address: string): string {
  if (!isIPv6(address) || address.toLowerCase().startsWith('::ffff:')) return address;
  const [head = '', tail = ''] = address.split('::');
  const front = head.split(':').filter((group) => group !== '');
  const back = tail.split(':').filter((group) => group !== '');
  const missing = Math.max(0, 8 - front.length - back.length);
  const groups = [...front, ...Array<string>(missing).fill('0'), ...back];
  return groups.slice(0, 4).join(':');
}
