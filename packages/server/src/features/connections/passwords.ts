// Passwords are checked against the server's own record of them (pg_authid), read at each login: one
// that was changed with SQL counts at once. Only the costly part is remembered: that a password
// belongs to a verifier. A changed password has another verifier and so is never found.
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import type { Sessions } from '../../engine/sessions.ts';
import { AppError } from '../../kernel/app-error.ts';
import { isInternalRole } from '../../kernel/internal-role.ts';
import { LoginError } from '../../kernel/login.ts';
import { createVerifier, matchesVerifier } from '../../kernel/scram.ts';
import type { Secret } from '../../kernel/secret.ts';
import { type RoleSecret, readRoleSecret } from './store.ts';

export type PasswordOutcome = 'right' | 'wrong' | 'may_not_log_in';
export type PasswordCheck = (
  databaseId: string,
  role: string,
  password: Secret,
) => Promise<PasswordOutcome>;

const maxRemembered = 2_000;
/** Longer ones are nobody's. */
const maxPasswordLength = 8_192;

export function createPasswordCheck(deps: { sessions: Sessions }): PasswordCheck {
  const key = randomBytes(32);
  const remembered = new Map<string, Buffer>();
  // Unknown roles are checked against it, so that they take as long as known ones.
  const nobody = createVerifier(randomBytes(32).toString('hex'));

  async function matches(password: string, verifier: string, role: string): Promise<boolean> {
    if (verifier.startsWith('md5')) return matchesMd5(password, verifier, role);
    const digest = createHmac('sha256', key).update(password).digest();
    const known = remembered.get(verifier);
    if (known && timingSafeEqual(known, digest)) return true;
    if (!(await matchesVerifier(password, verifier))) return false;
    if (remembered.size >= maxRemembered) remembered.delete(remembered.keys().next().value!);
    remembered.set(verifier, digest);
    return true;
  }

  async function read(databaseId: string, role: string): Promise<RoleSecret | undefined> {
    try {
      const found = await deps.sessions.use(databaseId, { role: 'postgres' }, (client) =>
        readRoleSecret(client, role),
      );
      return isInternalRole(role) || found?.rolsuper ? undefined : found;
    } catch (error) {
      if (error instanceof AppError && error.status === 404)
        throw new LoginError('unknown_database', `database "${databaseId}" does not exist`);
      throw new LoginError('unavailable', 'the database cannot be started at the moment', {
        cause: error,
      });
    }
  }

  return async (databaseId, role, password) => {
    const found = await read(databaseId, role);
    const text = password.reveal().slice(0, maxPasswordLength);
    const isRight = await matches(text, found?.rolpassword ?? (await nobody), role);
    if (!isRight || !found?.rolpassword || found.expired) return 'wrong';
    return found.rolcanlogin ? 'right' : 'may_not_log_in';
  };
}

/** The older form: `md5` and the digest of password and role name. */
function matchesMd5(password: string, verifier: string, role: string): boolean {
  const expected = Buffer.from(verifier);
  const digest = createHash('md5').update(password).update(role).digest('hex');
  const actual = Buffer.from(`md5${digest}`);
  return expected.length === actual.length && timingSafeEqual(expected, actual);
}
