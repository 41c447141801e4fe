// API tokens. Only SHA-256 of a value is stored. Who presents one is looked up by
// features/accounts, whose cache hears of every revocation.
import { operations } from '@coppice/contract';
import type { Metastore } from '../../engine/metastore/metastore.ts';
import { notFound } from '../../kernel/app-error.ts';
import type { Clock } from '../../kernel/clock.ts';
import { hashCredential, newCredential, newId } from '../../kernel/ids.ts';
import { type Route, route } from '../../kernel/route.ts';
import { parseScope } from './scope.ts';
import { databasesOf, deleteToken, insertToken, listTokens } from './store.ts';

const dayMs = 24 * 60 * 60 * 1000;
const defaultDays = 365;

export interface TokensDeps {
  metastore: Metastore;
  clock: Clock;
  /** Forgets a credential in this process at once; the others hear of it from the control database. */
  forget(valueHash: Buffer): void;
}

export function createTokens({ metastore, clock, forget }: TokensDeps): { routes: Route[] } {
  return {
    routes: [
      route(operations.tokens.create, async ({ principal, body }) => {
        const scope =
          body.scope_json === undefined
            ? null
            : parseScope(body.scope_json, await databasesOf(metastore, principal.accountKey));
        const value = newCredential('cop_pat');
        const createdAt = clock.now();
        const token = {
          id: newId('tok'),
          name: body.name ?? '',
          created_at: createdAt,
          expires_at: new Date(createdAt.getTime() + (body.expires_in_days ?? defaultDays) * dayMs),
        };
        await insertToken(metastore, {
          ...token,
          accountKey: principal.accountKey,
          valueHash: hashCredential(value),
          scope,
        });
        return { ...token, token: value };
      }),

      route(operations.tokens.list, ({ principal }) => listTokens(metastore, principal.accountKey)),

      route(operations.tokens.revoke, async ({ principal, params }) => {
        const valueHash = await deleteToken(metastore, principal.accountKey, params.token_id);
        if (!valueHash) throw notFound('token');
        forget(valueHash);
        return { message: `token ${params.token_id} has been revoked` };
      }),
    ],
  };
}
