import type { Metastore } from '../../engine/metastore/metastore.ts';
import { conflict, rateLimited, unauthorized } from '../../kernel/app-error.ts';
import { hashCredential, newCredential, newId, sameHash } from '../../kernel/ids.ts';
import type { Principal } from '../../kernel/principal.ts';
import type { TokenBuckets } from '../../kernel/token-bucket.ts';
import type { TokenSigner } from '../signing/index.ts';
import type { Credentials } from './credentials.ts';
import type { IdentityVerifier } from './identity.ts';
import {
  type AccountRow,
  claimAccount,
  findAccount,
  findByIdentity,
  insertAnonymous,
  upsertVerified,
} from './store.ts';

export interface AccountsDeps {
  metastore: Metastore;
  signer: TokenSigner;
  credentials: Credentials;
  identities: IdentityVerifier;
  registrations: TokenBuckets;
}

export type AccountsService = ReturnType<typeof createAccountsService>;

const sessionSeconds = 90 * 24 * 60 * 60;
const uniqueViolation = '23505';

export function createAccountsService(deps: AccountsDeps) {
  const { metastore, signer, credentials, identities, registrations } = deps;
  const session = (subject: string) =>
    signer.sign({ sub: subject }, { audience: 'session', expiresInSeconds: sessionSeconds });

  /** The account behind an anonymous id and its secret; 401 for any other pair. */
  async function verifyAnonymous(anonymousId: string, secret: string): Promise<AccountRow> {
    const account = await findAccount(metastore, anonymousId);
    const given = hashCredential(secret);
    const expected = account?.anonymous_secret_hash ?? Buffer.alloc(given.length);
    if (!sameHash(given, expected) || account?.anonymous_id !== anonymousId)
      throw unauthorized('unknown anonymous account or wrong secret');
    return account;
  }

  return {
    verifyAnonymous,

    async register(address: string) {
      const waitSeconds = registrations.take(address);
      if (waitSeconds > 0)
        throw rateLimited('too many registrations from this address', waitSeconds);
      const id = newId('anon');
      const secret = newCredential('cop_as');
      await insertAnonymous(metastore, id, hashCredential(secret));
      const { token, expiresAt } = await session(id);
      return {
        anonymous_id: id,
        anonymous_secret: secret,
        token,
        expires_at: expiresAt,
        is_anonymous: true,
      };
    },

    async refresh(anonymousId: string, secret: string) {
      await verifyAnonymous(anonymousId, secret);
      const { token, expiresAt } = await session(anonymousId);
      return { token, expires_at: expiresAt };
    },

    async claim(principal: Principal, idToken: string) {
      const identity = await identities.verify(idToken);
      const taken = () =>
        conflict(
          'this identity already has an account; sign in to it and adopt the databases of this one',
        );
      const verified = () =>
        conflict(
          'this account is verified already; use adoption to move databases between accounts',
        );
      if (!principal.isAnonymous) throw verified();
      if (await findByIdentity(metastore, identity)) throw taken();
      const id = newId('cus');
      try {
        if (!(await claimAccount(metastore, principal.accountKey, id, identity))) throw verified();
      } catch (error) {
        if ((error as { code?: string }).code === uniqueViolation) throw taken();
        throw error;
      }
      credentials.forgetAccount(principal.accountKey);
      return { id, email: identity.email, claimed: true };
    },

    async signIn(idToken: string) {
      const identity = await identities.verify(idToken);
      const { id, email } = await upsertVerified(metastore, newId('cus'), identity);
      const { token, expiresAt } = await session(id);
      return { token, expires_at: expiresAt, id, email };
    },
  };
}
