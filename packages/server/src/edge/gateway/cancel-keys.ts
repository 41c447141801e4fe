// Who may cancel what. A client gets its server's process id, so that what it shows matches
// pg_stat_activity, but a secret of ours: process ids of different instances coincide, and the
// server's own secret never leaves the machine.
import { randomBytes, timingSafeEqual } from 'node:crypto';

export interface CancelKeys<T> {
  /** A new secret for cancelling `target`; `forget` makes it worthless. */
  issue(processId: number, minorVersion: number, target: T): { secret: Buffer; forget: () => void };
  find(processId: number, secret: Buffer): T | undefined;
  readonly size: number;
}

/** Before 3.2 the protocol has room for four bytes. */
const secretBytes = (minorVersion: number) => (minorVersion >= 2 ? 32 : 4);

export function createCancelKeys<T>(): CancelKeys<T> {
  const byProcess = new Map<number, { secret: Buffer; target: T }[]>();

  function find(processId: number, secret: Buffer) {
    return byProcess
      .get(processId)
      ?.find((key) => key.secret.length === secret.length && timingSafeEqual(key.secret, secret));
  }

  return {
    issue(processId, minorVersion, target) {
      let secret = randomBytes(secretBytes(minorVersion));
      while (find(processId, secret)) secret = randomBytes(secret.length);
      const key = { secret, target };
      const keys = byProcess.get(processId) ?? [];
      keys.push(key);
      byProcess.set(processId, keys);
      return {
        secret,
        forget() {
          const left = byProcess.get(processId)?.filter((other) => other !== key) ?? [];
          if (left.length === 0) byProcess.delete(processId);
          else byProcess.set(processId, left);
        },
      };
    },
    find: (processId, secret) => find(processId, secret)?.target,
    get size() {
      return byProcess.size;
    },
  };
}
