// Who presents a bearer credential. Lookups are cached; the cache is trusted only while the
// control database's notifications arrive, so a revoked token is refused on the next request here
// and within a notification's travel time elsewhere.
import { hash } from 'node:crypto';
import type { Metastore } from '../../engine/metastore/metastore.ts';
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

const maxEntries = 20_000;

export function createCredentials(deps: {
  metastore: Metastore;
  signer: TokenSigner;
  clock: Clock;
}): Credentials {
  const { metastore, signer, clock } = deps;
  const { notifications } = metastore;
  const cache = new Map<string, Entry>();
  let cacheEpoch = notifications.epoch;
  // Counts everything that was forgotten: a lookup that began before may hold what is no more.
  let forgotten = 0;

  function forget(key: string): void {
    forgotten++;
    cache.delete(key);
  }
  function forgetAccount(accountKey: string): void {
    forgotten++;
    for (const [key, entry] of cache)
      if (entry.principal.accountKey === accountKey) cache.delete(key);
  }
  notifications.on('credentials', forget);
  notifications.on('accounts', forgetAccount);

  async function look(bearer: string, valueHash: string): Promise<Principal> {
    const began = { epoch: notifications.epoch, forgotten };
    const entry = bearer.startsWith('cop_')
      ? await byToken(bearer, valueHash)
      : await bySession(bearer);
    if (entry.expiresAtMs <= clock.now().getTime()) throw unauthorized();
    if (
      began.epoch !== null &&
      began.epoch === notifications.epoch &&
      began.forgotten === forgotten
    ) {
      if (cache.size >= maxEntries) cache.delete(cache.keys().next().value!);
      cache.set(valueHash, entry);
    }
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
      if (notifications.epoch !== cacheEpoch) {
        cache.clear();
        cacheEpoch = notifications.epoch;
      }
      const valueHash = hash('sha256', bearer);
      const entry = cacheEpoch === null ? undefined : cache.get(valueHash);
      if (entry && entry.expiresAtMs > clock.now().getTime()) return entry.principal;
      return look(bearer, valueHash);
    },
    forgetToken: (valueHash) => forget(valueHash.toString('hex')),
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
