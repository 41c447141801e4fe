// Every operation of the interface, one file a feature.
import { accounts } from './accounts.ts';
import { authConfig } from './auth-config.ts';
import { backups, restores } from './backups.ts';
import { branches } from './branches.ts';
import { databases } from './databases.ts';
import { functions } from './functions.ts';
import { connect, connectKeys, publishableKeys, serviceKeys } from './keys.ts';
import { migrations } from './migrations.ts';
import { observability } from './observability.ts';
import { schema } from './schema.ts';
import { secrets } from './secrets.ts';
import { sql } from './sql.ts';
import { tokens } from './tokens.ts';
import { users } from './users.ts';

export type { Static, TObject, TSchema } from 'typebox';
export * from './files.ts';
export type { Access, Operation } from './operation.ts';
export { ErrorBody } from './schemas.ts';

export const operations = {
  accounts,
  tokens,
  databases,
  schema,
  observability,
  sql,
  connect,
  connectKeys,
  publishableKeys,
  serviceKeys,
  authConfig,
  users,
  migrations,
  branches,
  backups,
  restores,
  secrets,
  functions,
};
