// The ways in: HTTP, the Postgres gateway, files over WebSocket.
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { type Config, ConfigError } from '../config.ts';
import { createFilesServer } from '../edge/files/files-server.ts';
import { loadCertificate, openGateway } from '../edge/gateway/gateway.ts';
import { buildApp } from '../edge/http/app.ts';
import { createMetrics } from '../edge/http/metrics.ts';
import { addServiceEndpoints } from '../edge/http/service-endpoints.ts';
import { createTokenBuckets } from '../kernel/token-bucket.ts';
import type { Addresses } from './addresses.ts';
import type { Basics } from './basics.ts';
import type { Features } from './features.ts';
import type { Machine } from './machine.ts';

/** A taken port is said before anything is started for it. */
export async function checkPorts(config: Config): Promise<void> {
  await listen(() => probe(config.host, config.port), 'port');
  await listen(() => probe(config.host, config.gatewayPort), 'gateway-port');
}

export async function openDoors(
  config: Config,
  { metastore, engine, history, recorder }: Machine,
  features: Features,
  addresses: Addresses,
  { clock, logger, releasers }: Basics,
): Promise<void> {
  const metrics = createMetrics();
  const app = buildApp({
    logger,
    answered: metrics.answered,
    routes: features.routes,
    authenticate: features.credentials.authenticate,
    findDatabase: features.databases.findFor,
    requestLimits: createTokenBuckets(clock, {
      burst: config.requestBurst,
      perSecond: config.requestsPerSecond,
    }),
    bodyLimitBytes: config.bodyLimitMb * 1024 * 1024,
    trustProxy: config.trustProxy,
  });
  addServiceEndpoints(app, {
    publicUrl: addresses.publicUrl,
    checkReady: async () => void (await metastore.query('select 1')),
    jwks: () => features.signer.jwks(),
    metrics,
    gauges: () => ({
      ...prefixed('databases', engine.stats()),
      ...prefixed('function_sandboxes', features.runtime.counts()),
      ...prefixed('jobs', features.jobs.stats()),
      ...prefixed('history', history.upkeep.stats()),
    }),
  });
  features.developmentIssuer?.addTo(app);

  if ((config.gatewayTlsCert === undefined) !== (config.gatewayTlsKey === undefined))
    throw new ConfigError('--gateway-tls-cert and --gateway-tls-key go together');
  const certificate = await loadCertificate({
    certFile: config.gatewayTlsCert,
    keyFile: config.gatewayTlsKey,
    directory: join(config.dataDir, 'gateway'),
    hosts: [
      ...new Set([
        'localhost',
        '127.0.0.1',
        '::1',
        config.publicGatewayHost ?? addresses.publicHost,
      ]),
    ],
  });
  await listen(async () => {
    const gateway = await openGateway({
      host: config.host,
      port: config.gatewayPort,
      certificate,
      requireTls: config.gatewayRequireTls,
      // The rest is for the service's own sessions.
      connectionLimit: config.gatewayConnections || config.instanceConnections - 20,
      idleTimeoutMs: config.gatewayIdleSeconds * 1_000,
      logins: features.connections.logins,
      wake: (id) => engine.wake(id),
      recorder,
      logger,
    });
    addresses.opened({ gatewayPort: gateway.port });
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
    files: features.files.service,
    logins: features.connections.logins,
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
  addresses.opened({ httpPort: (app.server.address() as AddressInfo).port });
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

/** Statistics of a part as gauges: `jobs`, `{ givenUp: 1 }` → `jobs_given_up: 1`. */
function prefixed(prefix: string, stats: object): Record<string, number> {
  return Object.fromEntries(
    Object.entries(stats).map(([name, value]) => [
      `${prefix}_${name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)}`,
      Number(value),
    ]),
  );
}
