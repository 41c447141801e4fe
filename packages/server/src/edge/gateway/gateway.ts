// The Postgres port: one for all databases. A client's user name says which database and role it
// wants (`db_….role`); a sleeping database is woken while the client waits.
//
// - Who gets in is for `Logins` to say; a role reaches its server only after that.
// - The gateway reads messages up to the first ReadyForQuery; from then on bytes only flow.
// - An open connection holds its database awake, also an idle one.
//
// On disk: `<dataDir>/gateway/server.{crt,key}` when no certificate is configured.
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { createSecureContext } from 'node:tls';
import type { Logger } from '../../kernel/logger.ts';
import type { Logins } from '../../kernel/login.ts';
import type { QueryRecorder } from '../../kernel/query-recorder.ts';
import { createCancelKeys } from './cancel-keys.ts';
import type { Certificate } from './certificate.ts';
import { endSoon } from './channel.ts';
import {
  type AwakeDatabase,
  type CancelTarget,
  type ConnectionDeps,
  serveConnection,
} from './connection.ts';
import { createRelay } from './epoll-relay.ts';
import { createPlaces } from './places.ts';
import { Refusal } from './refusal.ts';

export { loadCertificate } from './certificate.ts';

export interface GatewayOptions {
  host: string;
  port: number;
  certificate: Certificate;
  requireTls: boolean;
  /** Connections a database. */
  connectionLimit: number;
  /** Connections of all databases together that have not been admitted yet. */
  startupLimit?: number;
  startupTimeoutMs?: number;
  /** 0: an idle connection stays for ever. */
  idleTimeoutMs: number;
  logins: Logins;
  wake(databaseId: string): Promise<AwakeDatabase>;
  recorder: QueryRecorder;
  logger: Logger;
}

export interface Gateway {
  readonly port: number;
  /** Open connections, those in start-up included. */
  readonly connections: number;
  /** Ends every connection with a message that says so. */
  close(): Promise<void>;
}

const keepAliveMs = 60_000;
/** How long `close` waits for connections to end by themselves. */
const farewellMs = 2_000;

export async function openGateway(options: GatewayOptions): Promise<Gateway> {
  const { startupLimit = 2_000, logger } = options;
  const closing = new AbortController();
  const relay = createRelay(logger);
  const deps: ConnectionDeps = {
    logins: options.logins,
    wake: options.wake,
    recorder: options.recorder,
    encryption: {
      context: createSecureContext({ ...options.certificate, minVersion: 'TLSv1.2' }),
      required: options.requireTls,
    },
    relay,
    cancelKeys: createCancelKeys<CancelTarget>(),
    places: createPlaces(options.connectionLimit),
    logger,
    closing: closing.signal,
    startupTimeoutMs: options.startupTimeoutMs ?? 60_000,
    idleTimeoutMs: options.idleTimeoutMs,
  };
  const open = new Set<Promise<void>>();
  const starting = new Set<Socket>();

  const server = createServer({
    noDelay: true,
    keepAlive: true,
    keepAliveInitialDelay: keepAliveMs,
  });
  server.on('connection', (socket) => {
    // Errors show as the socket's closing.
    socket.on('error', () => {});
    if (starting.size >= startupLimit) {
      socket.write(new Refusal('53300', 'too many connections in start-up').toMessage());
      endSoon(socket, 1_000);
      return;
    }
    starting.add(socket);
    socket.once('close', () => starting.delete(socket));
    const established = () => starting.delete(socket);
    const served = serveConnection(socket, deps, established).finally(() => open.delete(served));
    open.add(served);
  });
  server.listen(options.port, options.host);
  try {
    await once(server, 'listening');
  } catch (error) {
    await relay.close();
    throw error;
  }
  server.on('error', (error) => logger.error({ err: error }, 'the gateway cannot accept'));
  const { port } = server.address() as AddressInfo;

  return {
    port,
    get connections() {
      return open.size;
    },
    async close() {
      server.close();
      for (const socket of starting) socket.destroy();
      closing.abort();
      const patience = new AbortController();
      await Promise.race([
        Promise.all(open),
        delay(farewellMs, undefined, { signal: patience.signal }).catch(() => {}),
      ]);
      patience.abort();
      await relay.close();
    },
  };
}
