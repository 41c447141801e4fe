// Builds the whole service in plain code: what depends on what is read here, top to bottom.
// Whatever is acquired pushes a releaser; stopping runs them in reverse.
import { randomUUID } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type pg from 'pg';
import { backupDirectory, type Config, ConfigError, isLoopback, loadMasterKeys } from './config.ts';
import { createFilesServer } from './edge/files/files-server.ts';
import { loadCertificate, openGateway } from './edge/gateway/gateway.ts';
import { buildApp } from './edge/http/app.ts';
import { createDevelopmentIssuer } from './edge/http/development-issuer.ts';
import { addServiceEndpoints } from './edge/http/service-endpoints.ts';
import { createJobs } from './engine/jobs/jobs.ts';
import { openMetastore } from './engine/metastore/metastore.ts';
import { startControlInstance } from './engine/postgres/control-instance.ts';
import { createHistory, type PostgresHistory } from './engine/postgres/history/history.ts';
import { createPostgresEngine } from './engine/postgres/index.ts';
import { openPostgresHost } from './engine/postgres/postgres-host.ts';
import { createRuntime } from './engine/runtime/runtime.ts';
import { createSessions } from './engine/sessions.ts';
import {
  createAccounts,
  createCredentials,
  createIdentityVerifier,
  type TrustedIssuer,
} from './features/accounts/index.ts';
import { createAuthConfig } from './features/auth-config/index.ts';
import { createBackups, createDirectoryStore } from './features/backups/index.ts';
import { createBranches } from './features/branches/index.ts';
import { createConnections, createRoleCheck } from './features/connections/index.ts';
import {
  createConnectionStrings,
  createDatabases,
  type MadeDatabase,
} from './features/databases/index.ts';
import { createFiles } from './features/files/index.ts';
import { createFunctions } from './features/functions/index.ts';
import { createKeys } from './features/keys/index.ts';
import { createMigrations } from './features/migrations/index.ts';
import {
  createObservability,
  createQueryRecorder,
  noteActivity,
} from './features/observability/index.ts';
import { createSchema } from './features/schema/index.ts';
import { createSecrets } from './features/secrets/index.ts';
import { createTokenSigner } from './features/signing/index.ts';
import { createSql, createSqlBackends } from './features/sql/index.ts';
import { createTokens } from './features/tokens/index.ts';
import { createUsers } from './features/users/index.ts';
import { systemClock } from './kernel/clock.ts';
import type { Logger } from './kernel/logger.ts';
import { createReleasers } from './kernel/releasers.ts';
import { createSecretbox } from './kernel/secretbox.ts';
import { createTokenBuckets } from './kernel/token-bucket.ts';

export interface Service {
  /** Where clients reach it. */
  publicUrl: string;
  gateway: { host: string; port: number };
  /** Where to sign in with the development issuer, if there is one. */
  signInUrl: string | undefined;
  /** For the operator: a database from a stored backup, in an anonymous account made for it. */
  restoreStored(
    backupId: string,
    name: string,
  ): Promise<{
    account: { anonymous_id: string; anonymous_secret: string; token: string };
    database: MadeDatabase;
  }>;
  stop(): Promise<void>;
}

const schemaDirectory = resolve(fileURLToPath(import.meta.url), '../../schema');

/** Starts everything. `progress` is told, in words for a person, what takes long. */
export async function startService(
  config: Config,
  logger: Logger,
  progress: (message: string) => void,
): Promise<Service> {
  const releasers = createReleasers(logger);
  try {
    return await compose(config, logger, progress, releasers);
  } catch (error) {
    await releasers.release();
    throw error;
  }
}

async function compose(
  config: Config,
  logger: Logger,
  progress: (message: string) => void,
  releasers: ReturnType<typeof createReleasers>,
): Promise<Service> {
  // A taken port is said before anything is started for it.
  await listen(() => probe(config.host, config.port), 'port');
  await listen(() => probe(config.host, config.gatewayPort), 'gateway-port');
  const clock = systemClock;
  const secretbox = createSecretbox(loadMasterKeys(config));

  // The machine: Postgres itself, and the control database.
  const host = await openPostgresHost({
    dataDir: config.dataDir,
    cacheDir: config.cacheDir,
    postgresBin: config.postgresBin,
    uidBase: config.uidBase,
    logger,
  });
  releasers.push('data directory', () => host.close());
  const metastore = await openMetastore({
    connection: await controlConnection(),
    schemaDirectory: join(schemaDirectory, 'control'),
    logger,
  });
  releasers.push('control database connections', () => metastore.close());

  async function controlConnection(): Promise<pg.ClientConfig> {
    if (config.metadataUrl !== undefined) return { connectionString: config.metadataUrl };
    progress('Starting the control database');
    const control = await startControlInstance({ host, logger });
    releasers.push('control database', () => control.stop());
    return control.connection;
  }

  progress('Preparing databases');
  let history: PostgresHistory | undefined;
  const engine = await createPostgresEngine({
    host,
    schemaDirectory: join(schemaDirectory, 'database'),
    options: {
      idleSeconds: config.idleSeconds,
      maxRunning: config.maxRunning,
      poolSize: config.poolSize,
      limits: {
        connections: config.instanceConnections,
        sharedBuffersMb: config.instanceSharedBuffersMb,
        temporaryFilesMb: config.instanceTemporaryFilesMb,
        sessionMemoryMb: config.instanceSessionMemoryMb,
      },
    },
    createHistory: (fleet) => {
      history = createHistory({
        fleet,
        major: host.binaries.major,
        policy: {
          retentionMs: config.historyDays * 24 * 3_600_000,
          baseEveryBytes: config.historyBaseMb * 1024 * 1024,
          limitBytes: config.historyLimitMb * 1024 * 1024,
          checkEveryMs: 5_000,
          sweepEveryMs: 3_600_000,
        },
        clock,
        logger,
      });
      return history;
    },
    logger,
  });
  releasers.push('databases', () => engine.close());
  const sessions = createSessions(engine);
  releasers.push('sessions', () => sessions.close());
  const backends = createSqlBackends(engine);
  releasers.push('SQL sessions', () => backends.close());
  const { recorder, close: closeRecorder } = createQueryRecorder();
  releasers.push('query recorder', closeRecorder);

  // Addresses are final only once the ports are open.
  const listening = { httpPort: config.port, gatewayPort: config.gatewayPort };
  const publicHost = config.host === '0.0.0.0' || config.host === '::' ? 'localhost' : config.host;
  const urlHost = publicHost.includes(':') ? `[${publicHost}]` : publicHost;
  const publicUrl = () =>
    (config.publicUrl ?? `http://${urlHost}:${listening.httpPort}`).replace(/\/+$/, '');

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
    port: listening.gatewayPort,
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

  const sql = createSql({ engine, backends, sessions, recorder, logger });
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

  function startBackups(cron: string) {
    try {
      return backups.startSchedule({ cron, keepDays: config.backupKeepDays }, clock, logger);
    } catch (error) {
      throw new ConfigError(`--backup-schedule: ${(error as Error).message}`);
    }
  }

  // Whatever a crash left is settled before anyone is let in.
  await databases.service.recover();
  await engine.reconcile(await databases.service.knownIds());
  history?.upkeep.start();
  // Values that secrets had are kept as long as a branch can reach back to them.
  const historyMs = config.historyDays * 24 * 3_600_000;
  const forgetting = setInterval(() => {
    secrets.service
      .prune(new Date(clock.now().getTime() - historyMs))
      .catch((error) => logger.warn({ err: error }, 'could not forget old values of secrets'));
  }, 3_600_000);
  releasers.push('forgetting old secrets', () => clearInterval(forgetting));
  await functions.start();
  releasers.push('functions', () => functions.stop());
  jobs.start();
  releasers.push('jobs', () => jobs.close());
  if (config.backupSchedule !== undefined) {
    const schedule = startBackups(config.backupSchedule);
    releasers.push('backup schedule', () => schedule.stop());
  }

  // The ways in.
  const app = buildApp({
    logger,
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
    authenticate: credentials.authenticate,
    findDatabase: databases.service.findFor,
    requestLimits: createTokenBuckets(clock, {
      burst: config.requestBurst,
      perSecond: config.requestsPerSecond,
    }),
    bodyLimitBytes: config.bodyLimitMb * 1024 * 1024,
    trustProxy: config.trustProxy,
  });
  addServiceEndpoints(app, {
    publicUrl,
    checkReady: async () => void (await metastore.query('select 1')),
    jwks: () => signer.jwks(),
    gauges: () => ({
      ...prefixed('databases', engine.stats()),
      ...prefixed('function_sandboxes', runtime.counts()),
      ...prefixed('jobs', jobs.stats()),
      ...prefixed('history', history?.upkeep.stats() ?? {}),
    }),
  });
  developmentIssuer?.addTo(app);

  if ((config.gatewayTlsCert === undefined) !== (config.gatewayTlsKey === undefined))
    throw new ConfigError('--gateway-tls-cert and --gateway-tls-key go together');
  const certificate = await loadCertificate({
    certFile: config.gatewayTlsCert,
    keyFile: config.gatewayTlsKey,
    directory: join(config.dataDir, 'gateway'),
    hosts: [...new Set(['localhost', '127.0.0.1', '::1', config.publicGatewayHost ?? publicHost])],
  });
  await listen(async () => {
    const gateway = await openGateway({
      host: config.host,
      port: config.gatewayPort,
      certificate,
      requireTls: config.gatewayRequireTls,
      // The rest is for the service's own sessions.
      connectionLimit: config.gatewayConnections || config.instanceConnections - 8,
      idleTimeoutMs: config.gatewayIdleSeconds * 1_000,
      logins: connections.logins,
      wake: (id) => engine.wake(id),
      recorder,
      logger,
    });
    listening.gatewayPort = gateway.port;
    releasers.push('gateway', () => gateway.close());
  }, 'gateway-port');
  await listen(
    () =>
      app.listen({
        host: config.host,
        port: config.port,
        listenTextResolver: () => 'HTTP is open',
      }),
    'port',
  );
  releasers.push('HTTP', () => app.close());
  const filesServer = createFilesServer({
    files: files.service,
    logins: connections.logins,
    logger,
    trustProxy: config.trustProxy,
    limits: {
      connections: 10_000,
      connectionsPerDatabase: config.filesConnections,
      requestsInFlight: config.filesRequests,
      streams: 16,
      watches: 64,
      frameBytes: config.filesFrameMb * 1024 * 1024,
      authenticationMs: 10_000,
      idleMs: config.filesIdleSeconds * 1_000,
      stallMs: config.filesStallSeconds * 1_000,
      pingMs: 30_000,
    },
  });
  filesServer.attach(app.server);
  releasers.push('connections to files', () => filesServer.close());
  listening.httpPort = (app.server.address() as AddressInfo).port;

  return {
    publicUrl: publicUrl(),
    gateway: { host: publicHost, port: listening.gatewayPort },
    signInUrl: developmentIssuer?.startUrl(),
    async restoreStored(backupId, name) {
      const account = await accounts.service.register('operator');
      const { anonymous_id, anonymous_secret } = account;
      const { key } = await accounts.service.verifyAnonymous(anonymous_id, anonymous_secret);
      const owner = { accountKey: key, isAnonymous: true };
      return { account, database: await backups.restoreStored(owner, backupId, name) };
    },
    stop: () => releasers.release(),
  };
}

/** Opens a port and closes it again. */
function probe(host: string, port: number): Promise<void> {
  const server = createServer();
  return new Promise((done, fail) => {
    server.once('error', fail);
    server.listen({ host, port }, () => server.close(() => done()));
  });
}

/** A taken port is the one thing that often goes wrong: say which flag changes it. */
async function listen(
  open: () => Promise<unknown>,
  setting: 'port' | 'gateway-port',
): Promise<void> {
  try {
    await open();
  } catch (error) {
    const { code, address, port } = error as NodeJS.ErrnoException & {
      address?: string;
      port?: number;
    };
    if (code === 'EADDRINUSE')
      throw new ConfigError(`${address}:${port} is taken; choose another port with --${setting}`);
    if (code === 'EACCES')
      throw new ConfigError(
        `not allowed to listen on port ${port}; choose another with --${setting}`,
      );
    throw error;
  }
}

function parseIssuer(entry: string): TrustedIssuer {
  const at = entry.lastIndexOf('=');
  if (at <= 0) throw new ConfigError(`--oidc-issuers takes issuer=audience, not ${entry}`);
  return { issuer: entry.slice(0, at), audience: entry.slice(at + 1) };
}

/** Names this data directory in the control database, for ever. */
export function homeId(dataDir: string): string {
  const file = join(dataDir, 'home-id');
  if (!existsSync(file)) writeFileSync(file, randomUUID(), { flag: 'wx', flush: true });
  return readFileSync(file, 'utf8').trim();
}

/** Statistics of a part as gauges: `jobs`, `{ givenUp: 1 }` → `jobs_given_up: 1`. */
function prefixed(prefix: string, stats: object): Record<string, number> {
  return Object.fromEntries(
    Object.entries(stats).map(([name, value]) => [
      `${prefix}_${name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)}`,
      Number(value),
    ]),
  );
}
