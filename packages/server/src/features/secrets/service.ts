import type { Metastore, Queryable } from '../../engine/metastore/metastore.ts';
import { conflict, notFound, unprocessable } from '../../kernel/app-error.ts';
import { Secret } from '../../kernel/secret.ts';
import type { Secretbox } from '../../kernel/secretbox.ts';
import * as store from './store.ts';

export type SecretsService = ReturnType<typeof createSecretsService>;

const maxSecrets = 1_000;
const sealContext = (databaseId: string, name: string) => `secret/${databaseId}/${name}`;

export function createSecretsService(deps: { metastore: Metastore; secretbox: Secretbox }) {
  const { metastore, secretbox } = deps;
  const seal = (databaseId: string, name: string, value: Secret) =>
    secretbox.seal(value.reveal(), sealContext(databaseId, name));

  return {
    list: (databaseId: string) => store.listSecrets(metastore, databaseId),

    async create(databaseId: string, name: string, value: Secret) {
      if ((await store.countSecrets(metastore, databaseId)) >= maxSecrets)
        throw unprocessable(`quota exceeded: a database may have ${maxSecrets} secrets`);
      const sealed = seal(databaseId, name, value);
      const created = await store.insertSecret(metastore, databaseId, name, sealed);
      if (!created) throw conflict(`secret ${name} already exists; use PUT to change its value`);
      return created;
    },

    async update(databaseId: string, name: string, value: Secret) {
      const sealed = seal(databaseId, name, value);
      const updated = await metastore.transaction(async (tx) => {
        await store.lockSecret(tx, databaseId, name);
        const createdAt = await store.supersedeSecret(tx, databaseId, name);
        return createdAt && store.insertValue(tx, databaseId, name, sealed, createdAt);
      });
      if (!updated) throw notFound('secret');
      return updated;
    },

    async delete(databaseId: string, name: string): Promise<void> {
      const deleted = await metastore.transaction(async (tx) => {
        await store.lockSecret(tx, databaseId, name);
        return store.supersedeSecret(tx, databaseId, name);
      });
      if (!deleted) throw notFound('secret');
    },

    /** Those of `names` that there are, with their current values. */
    async reveal(databaseId: string, names: readonly string[]): Promise<Map<string, Secret>> {
      if (names.length === 0) return new Map();
      const rows = await store.currentValues(metastore, databaseId, names);
      return new Map(
        rows.map(({ name, value_sealed }) => [
          name,
          new Secret(secretbox.open(value_sealed, sealContext(databaseId, name))),
        ]),
      );
    },

    /** Which of `names` do not exist. */
    async missing(databaseId: string, names: readonly string[]): Promise<string[]> {
      const rows = await store.currentValues(metastore, databaseId, names);
      const present = new Set(rows.map(({ name }) => name));
      return names.filter((name) => !present.has(name));
    },

    /** Gives a new database what another one has, or had at an instant. */
    async copySecrets(
      tx: Queryable,
      fromDatabaseId: string,
      toDatabaseId: string,
      at?: Date,
    ): Promise<void> {
      for (const row of await store.valuesAt(tx, fromDatabaseId, at ?? null)) {
        const value = secretbox.open(row.value_sealed, sealContext(fromDatabaseId, row.name));
        const sealed = secretbox.seal(value, sealContext(toDatabaseId, row.name));
        await store.insertValue(tx, toDatabaseId, row.name, sealed, row.created_at);
      }
    },

    /** Forgets values that were replaced before `horizon`. */
    prune: (horizon: Date) => store.deleteSuperseded(metastore, horizon),
  };
}
