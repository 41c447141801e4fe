// What a client is told when it is not let in, or is sent away: SQLSTATEs as Postgres uses them.
// https://www.postgresql.org/docs/18/errcodes-appendix.html
import { LoginError } from '../../kernel/login.ts';
import { PeerGone } from './channel.ts';
import { fatalError, ProtocolViolation } from './protocol.ts';

/** A reason to end a connection that its client is told. */
export class Refusal extends Error {
  readonly sqlState: string;
  readonly hint: string | undefined;

  constructor(sqlState: string, message: string, options: { hint?: string; cause?: unknown } = {}) {
    super(message, { cause: options.cause });
    this.name = 'Refusal';
    this.sqlState = sqlState;
    this.hint = options.hint;
  }

  toMessage(): Buffer {
    return fatalError(this.sqlState, this.message, this.hint);
  }
}

const loginStates: Record<LoginError['reason'], string> = {
  unknown_database: '3D000',
  wrong_secret: '28P01',
  not_permitted: '28000',
  too_many_failures: '28000',
  unavailable: '57P03',
};

/** The refusal that an error amounts to; `null` when there is nobody left to tell. */
export function refusalOf(error: unknown): Refusal | null {
  if (error instanceof Refusal) return error;
  if (error instanceof PeerGone) return null;
  if (error instanceof ProtocolViolation) return new Refusal(error.sqlState, error.message);
  if (error instanceof LoginError)
    return new Refusal(loginStates[error.reason], error.message, { cause: error });
  return new Refusal('XX000', 'internal error', { cause: error });
}
