import type { FileErrorCode } from '@coppice/contract';
import { DatabaseError } from 'pg';
import { AppError } from '../../kernel/app-error.ts';
import { FileError } from '../../kernel/files.ts';

/** SQLSTATEs that `fs.*` raises (schema/database/0003-files.sql), and Postgres's own that say enough. */
const codes: Record<string, FileErrorCode> = {
  PX002: 'ENOENT',
  PX013: 'EACCES',
  PX017: 'EEXIST',
  PX020: 'ENOTDIR',
  PX021: 'EISDIR',
  PX022: 'EINVAL',
  PX027: 'EFBIG',
  PX039: 'ENOTEMPTY',
  '42501': 'EACCES', // insufficient_privilege
  '25006': 'EACCES', // read_only_sql_transaction
  '28000': 'EACCES', // invalid_authorization_specification: the role is gone
  '22021': 'EINVAL', // character_not_in_repertoire
};

/** SQLSTATEs of transactions that lost against another one: running them again is right. */
const retryable = new Set(['40001', '40P01']);

export const isRetryable = (error: unknown) =>
  error instanceof DatabaseError && retryable.has(error.code ?? '');

/** What a caller gets to see of `error`; the rest stays in its cause. */
export function toFileError(error: unknown): FileError {
  if (error instanceof FileError) return error;
  if (error instanceof Error && error.name === 'AbortError')
    return new FileError('EIO', 'given up before its end');
  if (error instanceof AppError) return new FileError('EIO', error.message);
  if (error instanceof DatabaseError && error.code) {
    const code = codes[error.code];
    if (code) return new FileError(code, error.message, { cause: error });
    if (error.code === '55P03' || isRetryable(error))
      return new FileError('EIO', 'another writer holds the files; try again', { cause: error });
    if (error.code.startsWith('53'))
      return new FileError('EIO', 'the database has no room for this now; try again', {
        cause: error,
      });
  }
  return new FileError('EIO', 'the database could not be reached', { cause: error });
}
