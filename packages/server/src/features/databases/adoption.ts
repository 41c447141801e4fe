// Moving databases from an anonymous account to the caller's, in one transaction.
import { createHash } from 'node:crypto';
import type { Metastore, Queryable } from '../../engine/metastore/metastore.ts';
import { conflict, unprocessable } from '../../kernel/app-error.ts';
import type { DatabaseRecord } from '../../kernel/database-record.ts';
import type { Principal } from '../../kernel/principal.ts';
import type { AccountsService } from '../accounts/index.ts';
import type { DatabasesService } from './service.ts';
import * as store from './store.ts';

export interface AdoptionDeps {
  metastore: Metastore;
  accounts: Pick<AccountsService, 'verifyAnonymous'>;
  databases: Pick<DatabasesService, 'limitFor' | 'forget'>;
}

interface Adopted {
  transferred: string[];
  skipped: { id: string; reason: string }[];
  total_transferred: number;
}

export function createAdoption({ metastore, accounts, databases }: AdoptionDeps) {
  /** The account to take from; 401 for a wrong secret, 409 when there is nothing left to adopt. */
  async function source(principal: Principal, anonymousId: string, secret: string) {
    const account = await accounts.verifyAnonymous(anonymousId, secret);
    if (account.key === principal.accountKey)
      throw conflict('these databases belong to your account already');
    if (account.identity_issuer !== null)
      throw conflict('that account has been claimed; its databases belong to a verified customer');
    return account;
  }

  return {
    async preflight(principal: Principal, anonymousId: string, secret: string) {
      const from = await source(principal, anonymousId, secret);
      const [candidates, count] = await Promise.all([
        store.listDatabases(metastore, from.key),
        store.countDatabases(metastore, principal.accountKey),
      ]);
      const limit = databases.limitFor(principal);
      return {
        databases: candidates.map(({ id, name }) => ({ id, name, state: 'ACTIVE' })),
        quota_ok: count + candidates.length <= limit,
        current_count: count,
        database_limit: limit,
      };
    },

    async adopt(
      principal: Principal,
      request: { anonymousId: string; secret: string; ids: string[]; idempotencyKey: string },
    ): Promise<Adopted> {
      // The secret is checked first even for a repeated key: an answer is not given away for less.
      const account = await accounts.verifyAnonymous(request.anonymousId, request.secret);
      const requestHash = createHash('sha256')
        .update(JSON.stringify([request.anonymousId, request.ids]))
        .digest();
      const answer = await metastore.transaction(async (tx) => {
        // Both accounts, always in the same order, so that two adoptions cannot wait for each other.
        const keys = [account.key, principal.accountKey].sort((a, b) => Number(a) - Number(b));
        for (const key of keys) await store.lockAccount(tx, key);

        const earlier = await earlierAnswer(tx, principal.accountKey, request.idempotencyKey);
        if (earlier) {
          if (!earlier.request_hash.equals(requestHash))
            throw conflict('this idempotency_key was used for another request');
          return earlier.answer;
        }
        await source(principal, request.anonymousId, request.secret);
        const result = await move(tx, principal, account.key, [...new Set(request.ids)]);
        await tx.query(
          `insert into idempotent_answers
             (account_key, operation, idempotency_key, request_hash, answer)
           values ($1, 'adopt', $2, $3, $4)`,
          [principal.accountKey, request.idempotencyKey, requestHash, result],
        );
        return result;
      });
      for (const id of answer.transferred) databases.forget(id);
      return answer;
    },
  };

  async function move(
    tx: Queryable,
    principal: Principal,
    fromKey: string,
    ids: string[],
  ): Promise<Adopted> {
    const mine = await store.listDatabases(tx, principal.accountKey);
    const requested = new Set(ids);
    if (mine.some((database) => requested.has(database.id)))
      throw conflict('some of these databases belong to your account already');

    const theirs = new Map(
      (await store.listDatabases(tx, fromKey)).map((database) => [database.id, database]),
    );
    const takenNames = new Set(mine.map((database) => database.name));
    const transferred: DatabaseRecord[] = [];
    const skipped: Adopted['skipped'] = [];
    for (const id of ids) {
      const database = theirs.get(id);
      if (!database) skipped.push({ id, reason: 'not found in the anonymous account' });
      else if (takenNames.has(database.name))
        skipped.push({ id, reason: `you already have a database named "${database.name}"` });
      else transferred.push(database);
    }
    const limit = databases.limitFor(principal);
    if ((await store.countDatabases(tx, principal.accountKey)) + transferred.length > limit)
      throw unprocessable(`database quota exceeded: this account may have ${limit} databases`);
    const moved = transferred.map((database) => database.id);
    await store.moveDatabases(tx, moved, principal.accountKey);
    return { transferred: moved, skipped, total_transferred: moved.length };
  }
}

async function earlierAnswer(tx: Queryable, accountKey: string, idempotencyKey: string) {
  const { rows } = await tx.query<{ request_hash: Buffer; answer: Adopted }>(
    `select request_hash, answer from idempotent_answers
     where account_key = $1 and operation = 'adopt' and idempotency_key = $2`,
    [accountKey, idempotencyKey],
  );
  return rows[0];
}
