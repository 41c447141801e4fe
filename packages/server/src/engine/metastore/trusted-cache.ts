// Rows of the control database kept in memory. The cache is trusted only while notifications
// arrive: it is emptied whenever one may have been missed, and nothing is kept while the listener
// is down. `forget` is for the process that made the change; the others hear of it on `channel`.
import type { Notifications } from './notifications.ts';

export interface TrustedCache<V> {
  get(key: string): V | undefined;
  /** Loads what is not cached; the result is kept unless something was forgotten meanwhile. */
  load(key: string, fetch: () => Promise<V>): Promise<V>;
  forget(key: string): void;
  forgetWhere(predicate: (value: V) => boolean): void;
}

export function createTrustedCache<V>(
  notifications: Notifications,
  channel: string,
  maxEntries = 20_000,
): TrustedCache<V> {
  const entries = new Map<string, V>();
  let epoch = notifications.epoch;
  // A lookup that began before something was forgotten may hold what is no more.
  let forgotten = 0;

  function trusted(): boolean {
    if (notifications.epoch !== epoch) {
      entries.clear();
      epoch = notifications.epoch;
    }
    return epoch !== null;
  }
  function forget(key: string): void {
    forgotten++;
    entries.delete(key);
  }
  notifications.on(channel, forget);

  return {
    forget,
    get: (key) => (trusted() ? entries.get(key) : undefined),
    async load(key, fetch) {
      const began = { epoch: notifications.epoch, forgotten };
      const value = await fetch();
      if (trusted() && began.epoch === epoch && began.forgotten === forgotten) {
        if (entries.size >= maxEntries) entries.delete(entries.keys().next().value!);
        entries.set(key, value);
      }
      return value;
    },
    forgetWhere(predicate) {
      forgotten++;
      for (const [key, value] of entries) if (predicate(value)) entries.delete(key);
    },
  };
}
