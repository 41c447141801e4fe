// Who presents a bearer credential. Lookups are cached, so that a revoked token is still refused on
// the next request here and within a notification's travel time by other processes.
import { hash } from 'node:crypto';
import type { Metastore } from '../../engine/metastore/metastore.ts';
import { createTrustedCache } from '../../engine/metastore/trusted-cache.ts';
import { unauthorized } from '../../kernel/app-error.ts';
import type { Clock } from '../../kernel/clock.ts';
import type { Principal } from '../../kernel/principal.ts';
import type { TokenSigner } from '../signing/index.ts';
import { type AccountRow, findAccount, findByToken } from './store.ts';

interface Entry {
  principal: Principal;
  expiresAtMs: number;
}

export interface Credentials {
  /** Answers at once when the credential is known; throws or rejects with 401. */
  authenticate(bearer: string): Principal | Promise<Principal>;
  /** Forgets a revoked token. */
  forgetToken(valueHash: Buffer): void;
  forgetAccount(accountKey: string): void;
}

export function createCredentials(deps: {
  metastore: Metastore;
  signer: TokenSigner;
  clock: Clock;
}): Credentials {
  const { metastore, signer, clock } = deps;
  const cache = createTrustedCache<Entry>(metastore.notifications, 'credentials');
  const isLive = (entry: Entry) => entry.expiresAtMs > clock.now().getTime();
  const forgetAccount = (accountKey: string) =>
    cache.forgetWhere((entry) => entry.principal.accountKey === accountKey);
  metastore.notifications.on('accounts', forgetAccount);

  async function look(bearer: string, valueHash: string): Promise<Principal> {
    const entry = await cache.load(valueHash, () =>
      bearer.startsWith('cop_') ? byToken(bearer, valueHash) : bySession(bearer),
    );
    if (!isLive(entry)) throw unauthorized();
    return entry.principal;
  }

  async function byToken(bearer: string, valueHash: string): Promise<Entry> {
    if (!bearer.startsWith('cop_pat_'))
      throw unauthorized('this kind of key is not accepted by the management interface');
    const row = await findByToken(metastore, Buffer.from(valueHash, 'hex'));
    if (!row) throw unauthorized();
    const scope = row.token_scope && new Map(Object.entries(row.token_scope));
    return {
      principal: toPrincipal(row, row.token_id, scope),
      expiresAtMs: row.token_expires_at.getTime(),
    };
  }

  async function bySession(bearer: string): Promise<Entry> {
    const claims = await signer.verify(bearer, { audience: 'session' });
    const row = await findAccount(metastore, claims.sub!);
    if (!row) throw unauthorized();
    return {
      principal: toPrincipal(row, `session of ${row.key}`, null),
      expiresAtMs: claims.exp! * 1000,
    };
  }

  return {
    authenticate(bearer) {
      const valueHash = hash('sha256', bearer);
      const entry = cache.get(valueHash);
      return entry && isLive(entry) ? entry.principal : look(bearer, valueHash);
    },
    forgetToken: (valueHash) => cache.forget(valueHash.toString('hex')),
    forgetAccount,
  };
}

function toPrincipal(row: AccountRow, credentialId: string, scope: Principal['scope']): Principal {
  return {
    accountKey: row.key,
    customerId: row.id,
    isAnonymous: row.identity_issuer === null,
    email: row.email,
    customerSince: row.created_at,
    credentialId,
    scope,
  };
}
