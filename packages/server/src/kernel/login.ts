// Logging in to a database as a role, whichever door it is for: the Postgres port or the files.
import type { Secret } from './secret.ts';

export interface Login {
  databaseId: string;
  role: string;
  /** A password, a connect token or a connect key; told apart by shape. */
  secret: Secret;
  /** The client's address: failures are rate-limited by it. */
  address: string;
}

export interface Admission {
  databaseId: string;
  role: string;
  /** What the credential allows; passwords and tokens allow everything their role may do. */
  scopes: ReadonlySet<'db:connect' | 'fs:read' | 'fs:write'>;
  /** Aborted at once when the credential is revoked or the database deleted. */
  signal: AbortSignal;
}

export type LoginFailure =
  | 'unknown_database'
  | 'wrong_secret'
  | 'not_permitted'
  | 'too_many_failures'
  | 'unavailable';

export class LoginError extends Error {
  readonly reason: LoginFailure;

  constructor(reason: LoginFailure, message: string, options: { cause?: unknown } = {}) {
    super(message, options);
    this.name = 'LoginError';
    this.reason = reason;
  }
}

export interface Logins {
  /** Throws a `LoginError`. Wakes the database if the secret is a password. */
  admit(login: Login): Promise<Admission>;
}
