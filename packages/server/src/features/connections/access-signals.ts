// Signals that end connections at once: when the connect key that opened them is revoked, in
// whichever process, or when their database is deleted.
import type { Notifications } from '../../engine/metastore/notifications.ts';
import type { KeysService } from '../keys/index.ts';

export interface AccessSignals {
  ofDatabase(databaseId: string): AbortSignal;
  /** Aborted already if the key was revoked while it was looked up. */
  ofKey(databaseId: string, keyId: string): AbortSignal;
  close(): void;
}

const reviewMs = 1_000;
/** Revocations are remembered longer than any look-up takes. */
const maxRevoked = 10_000;

export function createAccessSignals(deps: {
  keys: Pick<KeysService, 'onConnectKeyRevoked' | 'livingConnectKeys'>;
  databases: { onDelete(listener: (id: string) => void): void };
  notifications: Pick<Notifications, 'epoch'>;
}): AccessSignals {
  const byDatabase = new Map<string, AbortController>();
  const byKey = new Map<string, { databaseId: string; controller: AbortController }>();
  const revoked = new Set<string>();

  function revoke(keyId: string): void {
    if (revoked.size >= maxRevoked) revoked.delete(revoked.keys().next().value!);
    revoked.add(keyId);
    byKey.get(keyId)?.controller.abort();
    byKey.delete(keyId);
  }
  deps.keys.onConnectKeyRevoked(revoke);
  deps.databases.onDelete((databaseId) => {
    byDatabase.get(databaseId)?.abort();
    byDatabase.delete(databaseId);
    for (const [keyId, key] of byKey) if (key.databaseId === databaseId) revoke(keyId);
  });

  // Notifications may have been missed: ask which keys there still are.
  let epoch = deps.notifications.epoch;
  const review = setInterval(async () => {
    const current = deps.notifications.epoch;
    if (current === epoch || current === null) return;
    const ids = [...byKey.keys()];
    const living = await deps.keys.livingConnectKeys(ids).catch(() => undefined);
    if (!living) return;
    for (const id of ids) if (!living.has(id)) revoke(id);
    epoch = current;
  }, reviewMs).unref();

  return {
    ofDatabase(databaseId) {
      let controller = byDatabase.get(databaseId);
      if (!controller) {
        controller = new AbortController();
        byDatabase.set(databaseId, controller);
      }
      return controller.signal;
    },
    ofKey(databaseId, keyId) {
      if (revoked.has(keyId)) return AbortSignal.abort();
      let key = byKey.get(keyId);
      if (!key) {
        key = { databaseId, controller: new AbortController() };
        byKey.set(keyId, key);
      }
      return key.controller.signal;
    },
    close: () => clearInterval(review),
  };
}
