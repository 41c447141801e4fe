// `snapshot_at` as an instant: microseconds since 1970, which is what Postgres stamps commits with.
//
// Written to the millisecond (or coarser), it means the whole of that millisecond: whoever reads the
// clock right after a commit, in a language whose clocks tick in milliseconds, finds that commit in
// the branch. Written with more digits it means exactly that microsecond.
import { badRequest } from '../../kernel/app-error.ts';

const pattern =
  /^(\d{4})-(\d{2})-(\d{2})[Tt ](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?([Zz]|[+-]\d{2}:\d{2})$/;

export function parseInstant(text: string): bigint {
  const malformed = () =>
    badRequest('snapshot_at must be an RFC 3339 timestamp such as 2026-01-31T12:34:56.789Z');
  const match = pattern.exec(text);
  if (!match) throw malformed();
  const [, year, month, day, hour, minute, second, fraction = '', zone] = match;
  const date = `${year}-${month}-${day}`;
  const seconds = Date.parse(`${date}T${hour}:${minute}:${second}${zone!.toUpperCase()}`) / 1000;
  if (Number.isNaN(seconds)) throw malformed();
  // The 30th of February passes as the 2nd of March.
  if (!new Date(`${date}T00:00:00Z`).toISOString().startsWith(date)) throw malformed();
  return BigInt(seconds) * 1_000_000n + microsOf(fraction);
}

function microsOf(fraction: string): bigint {
  if (fraction.length > 3) return BigInt(fraction.padEnd(6, '0').slice(0, 6));
  return BigInt(fraction.padEnd(3, '0')) * 1000n + 999n;
}

/** The last millisecond that has wholly begun at an instant. */
export const dateOf = (micros: bigint) => new Date(Number(micros / 1000n));
