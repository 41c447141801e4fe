// Roles are made by the superuser and handed to `admin` with the right to manage them, as if admin
// had made them itself. A role that goes leaves what it owned to `admin`, in every database of the
// instance, so that deleting always works.
import pg from 'pg';
import type { Engine } from '../../engine/engine.ts';
import type { Queryable } from '../../engine/metastore/metastore.ts';
import type { Sessions } from '../../engine/sessions.ts';
import { badRequest, conflict, notFound } from '../../kernel/app-error.ts';
import { randomBase32 } from '../../kernel/ids.ts';
import { createVerifier } from '../../kernel/scram.ts';
import { createTurns } from '../../kernel/turns.ts';
import * as store from './store.ts';

export interface UsersService {
  list(databaseId: string, signal: AbortSignal): Promise<store.User[]>;
  /** Answers the password. */
  create(databaseId: string, name: string, password: string | undefined): Promise<string>;
  delete(databaseId: string, name: string): Promise<void>;
}

const nameLimitBytes = 63;
const sqlState = { duplicateObject: '42710', undefinedObject: '42704', reservedName: '42939' };

export function createUsersService(deps: {
  engine: Pick<Engine, 'wake'>;
  sessions: Sessions;
}): UsersService {
  const { engine, sessions } = deps;
  // Roles are shared objects: Postgres fails two changes of one role at once with internal errors.
  const turns = createTurns();

  function asSuperuser<T>(databaseId: string, work: (db: Queryable) => Promise<T>): Promise<T> {
    return turns.take(databaseId, () => sessions.use(databaseId, { role: 'postgres' }, work));
  }

  return {
    list: (databaseId, signal) =>
      sessions.use(databaseId, { role: 'postgres', signal }, store.listUsers),

    async create(databaseId, name, given) {
      if (Buffer.byteLength(name) > nameLimitBytes)
        throw badRequest(`username must be at most ${nameLimitBytes} bytes long`);
      if (store.isReserved(name)) throw conflict(`the name ${name} is reserved`);
      const password = given ?? randomBase32(32);
      const verifier = await createVerifier(password);
      try {
        await asSuperuser(databaseId, (db) => store.createUser(db, name, verifier));
      } catch (error) {
        if (hasCode(error, sqlState.duplicateObject)) throw conflict(`user ${name} exists already`);
        if (hasCode(error, sqlState.reservedName)) throw conflict(`the name ${name} is reserved`);
        throw error;
      }
      return password;
    },

    async delete(databaseId, name) {
      if (store.isReserved(name)) throw conflict(`user ${name} cannot be deleted`);
      try {
        await asSuperuser(databaseId, async (db) => {
          if (!(await store.userExists(db, name))) throw notFound('user');
          for (const other of await store.otherDatabasesOf(db, name))
            await inOtherDatabase(databaseId, other, (client) => store.handOver(client, name));
          await store.deleteUser(db, name);
        });
      } catch (error) {
        if (hasCode(error, sqlState.undefinedObject)) throw notFound('user');
        throw error;
      }
    },
  };

  /** In a database that the customer made beside `postgres`. */
  async function inOtherDatabase(
    databaseId: string,
    name: string,
    work: (db: Queryable) => Promise<void>,
  ): Promise<void> {
    const lease = await engine.wake(databaseId);
    const client = new pg.Client({
      host: lease.socketDirectory,
      port: lease.port,
      user: 'postgres',
      database: name,
      connectionTimeoutMillis: 10_000,
    });
    client.on('error', () => {});
    try {
      await client.connect();
      await work(client);
    } finally {
      await client.end().catch(() => {});
      lease.release();
    }
  }
}

function hasCode(error: unknown, code: string): boolean {
  return error instanceof pg.DatabaseError && error.code === code;
}
