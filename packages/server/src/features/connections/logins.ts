// Admission to a database as a role. The shape of the secret says what it is (a connect key, a
// connect token, else a password); what fails as one kind is never tried as another.
import { AppError } from '../../kernel/app-error.ts';
import type { Clock } from '../../kernel/clock.ts';
import type { DatabaseRecord } from '../../kernel/database-record.ts';
import { isInternalRole } from '../../kernel/internal-role.ts';
import { type Admission, type Login, LoginError, type Logins } from '../../kernel/login.ts';
import type { KeysService } from '../keys/index.ts';
import type { TokenSigner } from '../signing/index.ts';
import type { AccessSignals } from './access-signals.ts';
import type { FailedLogins } from './failed-logins.ts';
import type { PasswordCheck } from './passwords.ts';

type Scope = 'db:connect' | 'fs:read' | 'fs:write';

export interface LoginsDeps {
  databases: { find(id: string): Promise<DatabaseRecord | undefined> };
  keys: Pick<KeysService, 'findConnectKey' | 'onConnectKeyRevoked' | 'livingConnectKeys'>;
  signer: Pick<TokenSigner, 'verify'>;
  passwords: PasswordCheck;
  signals: AccessSignals;
  failures: FailedLogins;
  clock: Clock;
}

const allScopes: ReadonlySet<Scope> = new Set(['db:connect', 'fs:read', 'fs:write']);
const knownDatabaseId = /^db_[a-z0-9]{1,64}$/;

export function createLogins(deps: LoginsDeps): Logins {
  const { signals } = deps;

  async function byPassword(login: Login): Promise<Admission> {
    const { databaseId, role, secret } = login;
    const outcome = await deps.passwords(databaseId, role, secret);
    if (outcome === 'wrong') throw wrongSecret(login);
    if (outcome === 'may_not_log_in')
      throw new LoginError('not_permitted', `role "${role}" is not permitted to log in`);
    return { databaseId, role, scopes: allScopes, signal: signals.ofDatabase(databaseId) };
  }

  async function byToken(login: Login): Promise<Admission> {
    const { databaseId, role } = login;
    let claims: Record<string, unknown>;
    try {
      claims = await deps.signer.verify(login.secret.reveal(), { audience: 'connect' });
    } catch (error) {
      if (isExpiry(error)) throw new LoginError('wrong_secret', 'the connect token has expired');
      throw wrongSecret(login);
    }
    if (claims.database !== databaseId || claims.role !== role || isInternalRole(role))
      throw wrongSecret(login);
    return { databaseId, role, scopes: allScopes, signal: signals.ofDatabase(databaseId) };
  }

  async function byKey(login: Login): Promise<Admission> {
    const { databaseId, role } = login;
    const key = await deps.keys.findConnectKey(login.secret.reveal());
    if (!key || key.database_id !== databaseId || key.role !== role || isInternalRole(role))
      throw wrongSecret(login);
    if (key.isExpired) throw new LoginError('wrong_secret', 'the connect key has expired');
    const signal = signals.ofKey(databaseId, key.id);
    if (signal.aborted) throw wrongSecret(login);
    const scopes = new Set(
      key.scopes.filter((scope): scope is Scope => (allScopes as ReadonlySet<string>).has(scope)),
    );
    return { databaseId, role, scopes, signal };
  }

  async function check(login: Login): Promise<Admission> {
    const text = login.secret.reveal();
    const admission = await (text.startsWith('cop_ck_')
      ? byKey(login)
      : looksLikeToken(text)
        ? byToken(login)
        : byPassword(login));
    // Asked after the signal was taken: a deletion from now on aborts it.
    if (!(await deps.databases.find(login.databaseId))) throw unknownDatabase(login);
    return admission;
  }

  return {
    async admit(login) {
      const { databaseId, address } = login;
      if (!knownDatabaseId.test(databaseId) || !(await deps.databases.find(databaseId)))
        throw unknownDatabase(login);
      return deps.failures.attempt(databaseId, address, () => check(login));
    },
  };
}

const unknownDatabase = ({ databaseId }: Login) =>
  new LoginError('unknown_database', `database "${databaseId}" does not exist`);

/** The same words whether the role, the secret or its place is wrong. */
const wrongSecret = ({ databaseId, role }: Login) =>
  new LoginError('wrong_secret', `password authentication failed for user "${databaseId}.${role}"`);

const isExpiry = (error: unknown) =>
  error instanceof AppError &&
  (error.cause as { code?: string } | undefined)?.code === 'ERR_JWT_EXPIRED';

/** Three base64url parts, of which the first is a JSON object with an algorithm. */
function looksLikeToken(text: string): boolean {
  const [, header] = /^([\w-]+)\.[\w-]+\.[\w-]*$/.exec(text) ?? [];
  if (header === undefined) return false;
  try {
    const parsed: unknown = JSON.parse(Buffer.from(header, 'base64url').toString('utf8'));
    return typeof parsed === 'object' && parsed !== null && 'alg' in parsed;
  } catch {
    return false;
  }
}
