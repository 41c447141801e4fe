// Everything customers know, built on the machine: what depends on what is read here, top to bottom.
import { randomUUID } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  backupDirectory,
  type Config,
  ConfigError,
  isLoopback,
  loadMasterKeys,
} from '../config.ts';
import { createDevelopmentIssuer } from '../edge/http/development-issuer.ts';
import { createJobs } from '../engine/jobs/jobs.ts';
import { createRuntime } from '../engine/runtime/runtime.ts';
import { createSessions } from '../engine/sessions.ts';
import {
  createAccounts,
  createCredentials,
  createIdentityVerifier,
  type TrustedIssuer,
} from '../features/accounts/index.ts';
import { createAuthConfig } from '../features/auth-config/index.ts';
import { createBackups, createDirectoryStore } from '../features/backups/index.ts';
import { createBranches } from '../features/branches/index.ts';
import { createConnections, createRoleCheck } from '../features/connections/index.ts';
import { createConnectionStrings, createDatabases } from '../features/databases/index.ts';
import { createFiles } from '../features/files/index.ts';
import { createFunctions } from '../features/functions/index.ts';
import { createKeys } from '../features/keys/index.ts';
import { createMigrations } from '../features/migrations/index.ts';
import { createObservability, noteActivity } from '../features/observability/index.ts';
import { createSchema } from '../features/schema/index.ts';
import { createSecrets } from '../features/secrets/index.ts';
import { createTokenSigner } from '../features/signing/index.ts';
import { createSql } from '../features/sql/index.ts';
import { createTokens } from '../features/tokens/index.ts';
import { createUsers } from '../features/users/index.ts';
import { createSecretbox } from '../kernel/secretbox.ts';
import { createTokenBuckets } from '../kernel/token-bucket.ts';
import type { Addresses } from './addresses.ts';
import type { Basics } from './basics.ts';
import type { Machine } from './machine.ts';

export type Features = Awaited<ReturnType<typeof createFeatures>>;

export async function createFeatures(
  config: Config,
  machine: Machine,
  { publicUrl, publicHost, gatewayPort }: Addresses,
  { clock, logger, releasers }: Basics,
) {
  const { metastore, engine, sessions, backends, sqlLimits, recorder } = machine;
  const secretbox = createSecretbox(loadMasterKeys(config));

  // Accounts and tokens.
  const signer = await createTokenSigner({ metastore, secretbox, clock });
  const credentials = createCredentials({ metastore, signer, clock });
  const developmentIssuer =
    config.oidcIssuers.length === 0 && isLoopback(config.host)
      ? createDevelopmentIssuer(publicUrl, logger)
      : undefined;
  const configuredIssuers = config.oidcIssuers.map(parseIssuer);
  const accounts = createAccounts({
    metastore,
    signer,
    credentials,
    identities: createIdentityVerifier(() =>
      developmentIssuer ? [developmentIssuer.trusted()] : configuredIssuers,
    ),
    registrations: createTokenBuckets(clock, {
      burst: config.registrationBurst,
      perSecond: config.registrationsPerSecond,
    }),
  });
  const tokens = createTokens({ metastore, clock, forget: credentials.forgetToken });

  // Databases and what is in them.
  const connectionStrings = createConnectionStrings(() => ({
    host: config.publicGatewayHost ?? publicHost,
    port: gatewayPort(),
  }));
  const home = homeId(config.dataDir);
  const databases = createDatabases({
    metastore,
    engine,
    sessions,
    secretbox,
    connectionStrings,
    logger,
    home,
    regions: config.regions,
    limits: {
      anonymous: config.anonymousDatabaseLimit,
      verified: config.databaseLimit,
      branches: config.branchLimit,
    },
    accounts: accounts.service,
  });

  // Keys and logins: who comes in as which role.
  const checkRole = createRoleCheck(sessions);
  const keys = createKeys({ metastore, clock, limit: config.keyLimit, checkRole });
  // Sessions of its own: they only ever read a role's password, and leave nothing behind.
  const loginSessions = createSessions(engine, { discard: false });
  releasers.push('login sessions', () => loginSessions.close());
  const connections = createConnections({
    databases: databases.service,
    keys: keys.service,
    signer,
    sessions: loginSessions,
    notifications: metastore.notifications,
    connectionStrings,
    checkRole,
    publicUrl,
    requireTls: config.gatewayRequireTls,
    failureLimit: {
      burst: config.failedLoginBurst,
      perSecond: config.failedLoginsPerSecond,
    },
    clock,
  });
  releasers.push('logins', () => connections.close());
  const authConfig = createAuthConfig({
    metastore,
    clock,
    allowPrivate: isLoopback(config.host) || config.allowPrivateFetch,
  });
  releasers.push('JWKS connections', () => authConfig.close());

  const sql = createSql({ engine, backends, sessions, recorder, logger, limits: sqlLimits });
  const schema = createSchema({ sessions });
  const users = createUsers({ engine, sessions, connectionString: connectionStrings.render });
  const migrations = createMigrations({ sessions, backends });
  const observability = createObservability({ engine, sessions, recorder });

  const secrets = createSecrets({ metastore, secretbox });
  const branches = createBranches({
    databases: databases.service,
    engine,
    copySecrets: secrets.service.copySecrets,
    connectionStrings,
    clock,
  });
  const backups = createBackups({
    metastore,
    engine,
    databases: databases.service,
    backupStore: createDirectoryStore(backupDirectory(config)),
    home,
    logger,
  });
  const files = createFiles({
    engine: noteActivity(engine, recorder),
    logger,
    limits: {
      quotaBytes: config.filesQuotaMb * 1024 * 1024,
      operationsAtOnce: 8,
      streamsAtOnce: config.filesStreams,
    },
  });
  releasers.push('files', () => files.close());
  const jobs = createJobs({
    metastore,
    home,
    handlers: backups.handlers,
    concurrency: config.heavyJobs,
    logger,
  });

  const runtime = createRuntime({
    directory: join(config.dataDir, 'runtime'),
    bubblewrap: config.bubblewrap,
    allowUnisolated: isLoopback(config.host) || config.functionUnisolated,
    privateAllowed: config.functionPrivateNetwork,
    spares: config.functionSpares,
    maxSandboxes: config.functionSandboxes,
    maxPerFunction: config.functionConcurrency,
    maxWaitMs: config.functionWaitSeconds * 1_000,
    idleMs: config.functionIdleSeconds * 1_000,
    logger,
  });
  const functionSessions = createSessions(engine, { limit: 8 });
  releasers.push('function sessions', () => functionSessions.close());
  const functions = createFunctions({
    metastore,
    runtime,
    sessions,
    functionSessions,
    files: files.service,
    secrets: secrets.service,
    clock,
    logger,
    home,
    invocationLimits: createTokenBuckets(clock, {
      burst: config.invocationBurst,
      perSecond: config.invocationsPerSecond,
    }),
    allowPrivateFetch: isLoopback(config.host) || config.allowPrivateFetch,
    functionLimit: config.functionLimit,
    runRetentionMs: config.runDays * 24 * 3_600_000,
    historyRetentionMs: config.historyDays * 24 * 3_600_000,
  });

  return {
    routes: [
      ...accounts.routes,
      ...tokens.routes,
      ...databases.routes,
      ...sql.routes,
      ...schema.routes,
      ...users.routes,
      ...migrations.routes,
      ...observability.routes,
      ...secrets.routes,
      ...functions.routes,
      ...branches.routes,
      ...backups.routes,
      ...keys.routes,
      ...connections.routes,
      ...authConfig.routes,
    ],
    signer,
    credentials,
    developmentIssuer,
    accounts: accounts.service,
    databases: databases.service,
    connections,
    secrets: secrets.service,
    backups,
    files,
    jobs,
    runtime,
    functions,
  };
}

function parseIssuer(entry: string): TrustedIssuer {
  const at = entry.lastIndexOf('=');
  if (at <= 0) throw new ConfigError(`--oidc-issuers takes issuer=audience, not ${entry}`);
  return { issuer: entry.slice(0, at), audience: entry.slice(at + 1) };
}

/** Names this data directory in the control database, for ever. */
function homeId(dataDir: string): string {
  const file = join(dataDir, 'home-id');
  if (!existsSync(file)) writeFileSync(file, randomUUID(), { flag: 'wx', flush: true });
  return readFileSync(file, 'utf8').trim();
}
