// The life of a database's row. A row that is not `ready` is being made or being deleted; either
// way a crash in between is settled by `recover` at the next start: such rows and whatever the
// engine has of them go.
import type { Engine } from '../../engine/engine.ts';
import type { Metastore, Queryable } from '../../engine/metastore/metastore.ts';
import { createTrustedCache } from '../../engine/metastore/trusted-cache.ts';
import type { Sessions } from '../../engine/sessions.ts';
import { AppError, badRequest, conflict, notFound, unprocessable } from '../../kernel/app-error.ts';
import type { DatabaseRecord } from '../../kernel/database-record.ts';
import { newId, randomBase32 } from '../../kernel/ids.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Principal } from '../../kernel/principal.ts';
import { createVerifier } from '../../kernel/scram.ts';
import type { Secretbox } from '../../kernel/secretbox.ts';
import { quoteLiteral } from '../../kernel/sql-quote.ts';
import type { ConnectionStrings } from './connection-strings.ts';
import * as store from './store.ts';

export interface DatabasesDeps {
  metastore: Metastore;
  engine: Engine;
  sessions: Sessions;
  secretbox: Secretbox;
  connectionStrings: ConnectionStrings;
  logger: Logger;
  /** Names this data directory in the control database. */
  home: string;
  regions: readonly string[];
  limits: { anonymous: number; verified: number; branches: number };
}

export interface DatabaseSpec {
  name: string;
  region?: string | undefined;
  adminPassword?: string | undefined;
  projectId?: string | undefined;
  /** Set for a branch. */
  parent?: DatabaseRecord;
}

/** The account that a database is made for. */
type Owner = Pick<Principal, 'accountKey' | 'isAnonymous'>;

export interface MadeDatabase extends DatabaseRecord {
  adminPassword: string;
}

export type DatabasesService = ReturnType<typeof createDatabasesService>;

const passwordContext = (id: string) => `admin-password/${id}`;
const namePattern = /^[\p{L}\p{N}_.-]([\p{L}\p{N}_. -]*[\p{L}\p{N}_.-])?$/u;

export function createDatabasesService(deps: DatabasesDeps) {
  const { metastore, engine, secretbox, limits } = deps;
  const records = createTrustedCache<DatabaseRecord | undefined>(
    metastore.notifications,
    'databases',
  );
  const deletionListeners: ((id: string) => unknown)[] = [];

  const limitFor = (principal: Pick<Principal, 'isAnonymous'>) =>
    principal.isAnonymous ? limits.anonymous : limits.verified;

  function check(spec: DatabaseSpec): void {
    if ([...spec.name].length > 63 || !namePattern.test(spec.name))
      throw badRequest(
        'name must be 1 to 63 letters, digits, "_", "-", "." and spaces, and not begin or end with a space',
      );
    if (spec.adminPassword === '') throw badRequest('admin_password must not be empty');
    if ((spec.adminPassword?.length ?? 0) > 4096)
      throw badRequest('admin_password must not be longer than 4096 characters');
    if (spec.region === '' || (spec.region?.length ?? 0) > 63)
      throw badRequest('region must have 1 to 63 characters');
    if (spec.region !== undefined && deps.regions.length > 0 && !deps.regions.includes(spec.region))
      throw unprocessable(`unknown region; this service has ${deps.regions.join(', ')}`);
  }

  async function reserve(principal: Owner, spec: DatabaseSpec, id: string, password: string) {
    const limit = limitFor(principal);
    const reservation = await store.reserveDatabase(
      metastore,
      {
        id,
        accountKey: principal.accountKey,
        name: spec.name,
        region: spec.region ?? spec.parent?.region ?? deps.regions[0] ?? 'local',
        projectId: spec.projectId ?? spec.parent?.projectId ?? null,
        parentDatabaseId: spec.parent?.id ?? null,
        home: deps.home,
        sealedPassword: secretbox.seal(password, passwordContext(id)),
      },
      { databases: limit, branches: limits.branches },
    );
    switch (reservation.outcome) {
      case 'reserved':
        return reservation.record;
      case 'name taken':
        throw conflict(`a database named "${spec.name}" exists already`);
      case 'too many databases':
        throw unprocessable(`database quota exceeded: this account may have ${limit} databases`);
      case 'too many branches':
        throw unprocessable(
          `branch quota exceeded: a database may have ${limits.branches} branches`,
        );
    }
  }

  /**
   * Makes a database: `build` fills it (create, branch or restore). Afterwards it is there whole,
   * or not at all. `finish` runs in the transaction that makes it visible.
   */
  async function make(
    principal: Owner,
    spec: DatabaseSpec,
    build: (id: string, adminVerifier: string) => Promise<void>,
    finish?: (tx: Queryable, id: string) => Promise<void>,
  ): Promise<MadeDatabase> {
    check(spec);
    const id = newId('db');
    const adminPassword = spec.adminPassword ?? randomBase32(32);
    const [row, verifier] = await Promise.all([
      reserve(principal, spec, id, adminPassword),
      createVerifier(adminPassword),
    ]);
    try {
      await build(id, verifier);
      const setReady = async (db: Queryable) => {
        if (!(await store.setReady(db, id, true))) throw new Error(`row of ${id} is gone`);
      };
      if (finish)
        await metastore.transaction(async (tx) => {
          await finish(tx, id);
          await setReady(tx);
        });
      else await setReady(metastore);
    } catch (error) {
      await discard(id);
      throw error;
    }
    return { ...row, adminPassword };
  }

  /** Best effort: what cannot be removed now is removed at the next start. */
  async function discard(id: string): Promise<void> {
    try {
      await engine.destroy(id);
      await store.removeDatabase(metastore, id);
    } catch (error) {
      deps.logger.error({ err: error, database: id }, 'could not clear up a database');
    }
  }

  async function setAdminPassword(id: string, password: string): Promise<void> {
    const verifier = await createVerifier(password);
    await deps.sessions.use(id, { role: 'postgres' }, (client) =>
      client.query(`alter role admin password ${quoteLiteral(verifier)}`),
    );
    await store.finishPasswordReset(metastore, id);
  }

  return {
    make,
    connectionStrings: deps.connectionStrings,

    /** Called with the id of a database whose deletion has begun and cannot be undone. */
    onDelete: (listener: (id: string) => unknown) => void deletionListeners.push(listener),

    create: (principal: Principal, spec: DatabaseSpec): Promise<MadeDatabase> =>
      make(principal, spec, (id, adminVerifier) => engine.create(id, { adminVerifier })),

    /** Any account's database; features that act for a connection rather than for an account. */
    async find(id: string): Promise<DatabaseRecord | undefined> {
      return records.get(id) ?? records.load(id, () => store.findDatabase(metastore, id));
    },

    /** For the edge: answers at once when it is known. */
    findFor(accountKey: string, id: string) {
      const mine = (record: DatabaseRecord | undefined) =>
        record?.accountKey === accountKey ? record : undefined;
      const known = records.get(id);
      if (known) return mine(known);
      return records.load(id, () => store.findDatabase(metastore, id)).then(mine);
    },

    list: (principal: Principal, projectId?: string): Promise<DatabaseRecord[]> =>
      store.listDatabases(metastore, principal.accountKey, {
        projectId,
        ids: principal.scope ? [...principal.scope.keys()] : undefined,
      }),

    async delete(record: DatabaseRecord): Promise<void> {
      if (!(await store.setReady(metastore, record.id, false))) throw notFound('database');
      records.forget(record.id);
      for (const listener of deletionListeners) await listener(record.id);
      await engine.destroy(record.id);
      await store.removeDatabase(metastore, record.id);
    },

    async adminPassword(id: string): Promise<string> {
      const sealed = await store.sealedPasswords(metastore, id);
      if (!sealed) throw notFound('database');
      return secretbox.open(sealed.current, passwordContext(id));
    },

    async resetPassword(id: string): Promise<string> {
      const password = randomBase32(32);
      await store.beginPasswordReset(metastore, id, secretbox.seal(password, passwordContext(id)));
      await setAdminPassword(id, password);
      return password;
    },

    limitFor,
    forget: (id: string) => records.forget(id),

    /** At start-up: settles what a crash left, and tells the engine what there is. */
    async recover(): Promise<void> {
      for (const { id, ready } of await store.unfinished(metastore, deps.home)) {
        if (!ready) {
          for (const listener of deletionListeners) await listener(id);
          await engine.destroy(id);
          await store.removeDatabase(metastore, id);
          continue;
        }
        const sealed = await store.sealedPasswords(metastore, id);
        if (sealed?.next)
          await setAdminPassword(id, secretbox.open(sealed.next, passwordContext(id)));
      }
    },

    knownIds: () => store.idsOfHome(metastore, deps.home),
  };
}

export interface BatchFailure {
  name: string;
  message: string;
  status: number;
}

/** Each item on its own, a few at a time; the answers are in the order of the request. */
export async function createBatch(
  service: Pick<DatabasesService, 'create'>,
  principal: Principal,
  specs: readonly DatabaseSpec[],
  logger: Logger,
): Promise<{ created: MadeDatabase[]; failed: BatchFailure[] }> {
  const outcomes: (MadeDatabase | BatchFailure)[] = [];
  const names = new Set<string>();
  const work = specs.map((spec, index) => {
    const isRepeated = names.has(spec.name);
    names.add(spec.name);
    return async () => {
      try {
        if (isRepeated) throw conflict(`the batch has two databases named "${spec.name}"`);
        outcomes[index] = await service.create(principal, spec);
      } catch (error) {
        if (!(error instanceof AppError))
          logger.error({ err: error }, 'could not create a database');
        outcomes[index] = {
          name: spec.name,
          message: error instanceof AppError ? error.message : 'internal error',
          status: error instanceof AppError ? error.status : 500,
        };
      }
    };
  });
  await Promise.all(
    Array.from({ length: 4 }, async () => {
      for (let task = work.shift(); task; task = work.shift()) await task();
    }),
  );
  const isFailure = (outcome: MadeDatabase | BatchFailure): outcome is BatchFailure =>
    'status' in outcome;
  return {
    created: outcomes.filter((outcome): outcome is MadeDatabase => !isFailure(outcome)),
    failed: outcomes.filter(isFailure),
  };
}
