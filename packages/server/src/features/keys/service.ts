import type { Metastore, Queryable } from '../../engine/metastore/metastore.ts';
import { notFound, unprocessable } from '../../kernel/app-error.ts';
import type { Clock } from '../../kernel/clock.ts';
import {
  type CredentialPrefix,
  hashCredential,
  type IdPrefix,
  newCredential,
  newId,
  sameHash,
} from '../../kernel/ids.ts';
import * as store from './store.ts';

const dayMs = 24 * 60 * 60 * 1000;
const connectScopes = ['db:connect', 'fs:read', 'fs:write'];

interface NewKey {
  name?: string | undefined;
  expires_in_days?: number | undefined;
}
export interface NewConnectKey extends NewKey {
  role?: string | undefined;
  scopes?: string[] | undefined;
}
export interface NewPublishableKey extends NewKey {
  allowed_origins?: string[] | undefined;
  exposed_schemas?: string[] | undefined;
  exposed_tables?: string[] | undefined;
  rate_limit?: { rps?: number | undefined; burst?: number | undefined } | undefined;
}

export type KeysService = ReturnType<typeof createKeysService>;

export function createKeysService(deps: {
  metastore: Metastore;
  clock: Clock;
  limit: number;
  checkRole(databaseId: string, role: string): Promise<void>;
}) {
  const { metastore, clock, limit } = deps;
  const revocationListeners: ((keyId: string) => void)[] = [];
  const isExpired = (key: { expires_at: Date | null }) =>
    key.expires_at !== null && key.expires_at <= clock.now();
  metastore.notifications.on('connect_keys', announce);

  function announce(keyId: string): void {
    for (const listener of revocationListeners) listener(keyId);
  }

  /** Inserts within the quota; creates of one database take turns, and its deletion waits. */
  async function create<K>(
    databaseId: string,
    table: store.KeyTable,
    [idPrefix, valuePrefix]: [IdPrefix, CredentialPrefix],
    wanted: NewKey,
    insert: (db: Queryable, key: store.NewRow) => Promise<K>,
  ): Promise<K & { value: string }> {
    const value = newCredential(valuePrefix);
    const createdAt = clock.now();
    const { expires_in_days: days } = wanted;
    const row: store.NewRow = {
      id: newId(idPrefix),
      databaseId,
      name: wanted.name ?? '',
      valueHash: hashCredential(value),
      createdAt,
      expiresAt: days === undefined ? null : new Date(createdAt.getTime() + days * dayMs),
    };
    const key = await metastore.transaction(async (tx) => {
      if (!(await store.lockDatabase(tx, databaseId))) throw notFound('database');
      if ((await store.countKeys(tx, table, databaseId)) >= limit)
        throw unprocessable(
          `key quota exceeded: a database may have ${limit} ${table.replace('_', ' ')}`,
        );
      return insert(tx, row);
    });
    return { ...key, value };
  }

  async function revoke(databaseId: string, table: store.KeyTable, keyId: string): Promise<void> {
    if (!(await store.deleteKey(metastore, table, databaseId, keyId))) throw notFound('key');
  }

  return {
    async createConnectKey(databaseId: string, wanted: NewConnectKey) {
      const role = wanted.role ?? 'admin';
      await deps.checkRole(databaseId, role);
      const scopes = wanted.scopes?.length ? [...new Set(wanted.scopes)] : connectScopes;
      return create(databaseId, 'connect_keys', ['ck', 'cop_ck'], wanted, (tx, row) =>
        store.insertConnectKey(tx, row, role, scopes),
      );
    },
    listConnectKeys: (databaseId: string) => store.listConnectKeys(metastore, databaseId),
    async revokeConnectKey(databaseId: string, keyId: string): Promise<void> {
      await revoke(databaseId, 'connect_keys', keyId);
      // Here at once; the other processes hear of it from the control database.
      announce(keyId);
    },
    /** The key with this value, unless it is expired. */
    async findConnectKey(
      value: string,
    ): Promise<(store.FoundConnectKey & { isExpired: boolean }) | undefined> {
      const hash = hashCredential(value);
      const key = await store.findConnectKey(metastore, hash);
      if (!key || !sameHash(key.value_hash, hash)) return undefined;
      return { ...key, isExpired: isExpired(key) };
    },
    /** Which of these connect keys there still are. */
    livingConnectKeys: (ids: readonly string[]) => store.livingConnectKeys(metastore, ids),
    /** Called at least once for each connect key that is revoked, in whichever process. */
    onConnectKeyRevoked: (listener: (keyId: string) => void) =>
      void revocationListeners.push(listener),

    async createPublishableKey(databaseId: string, wanted: NewPublishableKey) {
      const origins = wanted.allowed_origins ?? [];
      for (const origin of origins) checkOrigin(origin);
      return create(databaseId, 'publishable_keys', ['pk', 'cop_pk'], wanted, (tx, row) =>
        store.insertPublishableKey(tx, row, {
          allowedOrigins: origins,
          exposedSchemas: wanted.exposed_schemas ?? [],
          exposedTables: wanted.exposed_tables ?? [],
          rateLimit: fillRateLimit(wanted.rate_limit),
        }),
      );
    },
    listPublishableKeys: (databaseId: string) => store.listPublishableKeys(metastore, databaseId),
    revokePublishableKey: (databaseId: string, keyId: string) =>
      revoke(databaseId, 'publishable_keys', keyId),
    async findPublishableKey(value: string): Promise<store.FoundPublishableKey | undefined> {
      const hash = hashCredential(value);
      const key = await store.findPublishableKey(metastore, hash);
      return key && sameHash(key.value_hash, hash) && !isExpired(key) ? key : undefined;
    },

    createServiceKey: (databaseId: string, wanted: NewKey) =>
      create(databaseId, 'service_keys', ['sk', 'cop_sk'], wanted, store.insertServiceKey),
    listServiceKeys: (databaseId: string) => store.listServiceKeys(metastore, databaseId),
    revokeServiceKey: (databaseId: string, keyId: string) =>
      revoke(databaseId, 'service_keys', keyId),
  };
}

/** `*`, or scheme, host and port; a path would never match what browsers send. */
function checkOrigin(origin: string): void {
  if (origin === '*') return;
  const url = URL.canParse(origin) ? new URL(origin) : undefined;
  const isOrigin =
    url?.host && /^\/?$/.test(url.pathname) && !url.search && !url.hash && !url.username;
  if (!isOrigin)
    throw unprocessable(
      `allowed_origins: "${origin}" is not an origin such as https://example.com`,
    );
}

/** One half given stands for the other. */
function fillRateLimit(limit: NewPublishableKey['rate_limit']): store.RateLimit | null {
  const { rps, burst } = limit ?? {};
  if (rps === undefined && burst === undefined) return null;
  return { rps: rps ?? burst!, burst: burst ?? Math.max(1, Math.ceil(rps!)) };
}
