// The life of one client's connection, top to bottom: start-up → authenticate → wake → connect →
// splice; or a cancel request, which is its own short connection.
import { setMaxListeners } from 'node:events';
import type { Socket } from 'node:net';
import type { Logger } from '../../kernel/logger.ts';
import type { Admission, Logins } from '../../kernel/login.ts';
import type { QueryRecorder } from '../../kernel/query-recorder.ts';
import { Secret } from '../../kernel/secret.ts';
import type { CancelKeys } from './cancel-keys.ts';
import { type Channel, endSoon, PeerGone } from './channel.ts';
import { type Destination, destinationOf, serverParameters } from './destination.ts';
import type { Places } from './places.ts';
import {
  backendKeyData,
  cleartextPasswordRequest,
  maxPasswordBytes,
  negotiateProtocolVersion,
  newestMinorVersion,
  ProtocolViolation,
  parsePassword,
  type StartupPacket,
} from './protocol.ts';
import { Refusal, refusalOf } from './refusal.ts';
import type { Relay } from './relay.ts';
import {
  cancelQuery,
  type OpenServer,
  openServer,
  type ServerAddress,
  ServerRefusal,
} from './server-connection.ts';
import { type Encryption, startUp } from './start-up.ts';

/** A database held awake; what the engine calls a lease. */
export interface AwakeDatabase extends ServerAddress {
  /** Aborted when the server goes away under the holder. */
  readonly signal: AbortSignal;
  release(): void;
}

export interface CancelTarget {
  address: ServerAddress;
  server: Pick<OpenServer, 'processId' | 'cancelSecret'>;
}

/** All that a connection knows of the rest of the service. */
export interface ConnectionDeps {
  logins: Logins;
  wake(databaseId: string): Promise<AwakeDatabase>;
  recorder: QueryRecorder;
  encryption: Encryption;
  relay: Relay;
  cancelKeys: CancelKeys<CancelTarget>;
  places: Places;
  logger: Logger;
  /** Aborted when the gateway closes. */
  closing: AbortSignal;
  startupTimeoutMs: number;
  idleTimeoutMs: number;
}

/** How long a client that is refused may take to read why. */
const refusalMs = 5_000;

const shutdown = new Refusal('57P01', 'terminating connection due to administrator command');
const idle = new Refusal('57P05', 'terminating connection due to idle-session timeout');

/** A client that said who it is. */
interface Visitor {
  channel: Channel;
  startup: StartupPacket;
  destination: Destination;
  /** Called when its start-up is over. */
  onEstablished(): void;
}

/** Never throws; resolves when the connection is over. */
export async function serveConnection(
  socket: Socket,
  deps: ConnectionDeps,
  onEstablished: () => void,
): Promise<void> {
  let channel: Channel | undefined;
  // The client, until it is admitted, has this long for its part.
  const patience = setTimeout(() => socket.destroy(), deps.startupTimeoutMs);
  try {
    const greeting = await startUp(socket, deps.encryption, (latest) => {
      channel = latest;
    });
    if (greeting.packet.kind === 'cancel') {
      await cancel(greeting.packet, deps);
      return void socket.destroySoon();
    }
    const startup = greeting.packet;
    const destination = destinationOf(startup);
    const secret = await askForSecret(greeting.channel, startup);
    clearTimeout(patience);
    const admission = await deps.logins.admit({
      databaseId: destination.databaseId,
      role: destination.role,
      secret,
      address: socket.remoteAddress ?? '',
    });
    const visitor = { channel: greeting.channel, startup, destination, onEstablished };
    await enter(visitor, admission, deps);
  } catch (error) {
    refuse(channel?.socket ?? socket, error, deps.logger);
  } finally {
    clearTimeout(patience);
  }
}

/** From admission to the end: takes a place, wakes the database, connects and splices. */
async function enter(visitor: Visitor, admission: Admission, deps: ConnectionDeps): Promise<void> {
  const { databaseId } = visitor.destination;
  if (!admission.scopes.has('db:connect'))
    throw new Refusal('28000', 'this connect key does not allow database connections');
  const leave = deps.places.take(databaseId);
  try {
    const database = await wake(databaseId, deps);
    try {
      const parameters = serverParameters(visitor.startup, visitor.destination);
      const server = await openServer(database, parameters);
      await splice(visitor, server, { database, admission }, deps);
    } finally {
      database.release();
    }
  } finally {
    leave();
  }
}

async function wake(databaseId: string, deps: ConnectionDeps): Promise<AwakeDatabase> {
  try {
    return await deps.wake(databaseId);
  } catch (error) {
    if ((error as { status?: number }).status === 404)
      throw new Refusal('3D000', `database "${databaseId}" does not exist`, { cause: error });
    throw new Refusal('57P03', 'the database cannot be started at the moment', { cause: error });
  }
}

async function splice(
  { channel, startup, destination, onEstablished }: Visitor,
  server: OpenServer,
  { database, admission }: { database: AwakeDatabase; admission: Admission },
  deps: ConnectionDeps,
): Promise<void> {
  const { recorder } = deps;
  const { databaseId } = destination;
  const client = channel.socket;
  const target = { address: database, server };
  const key = deps.cancelKeys.issue(server.processId, startup.minorVersion, target);
  const ending = firstOf([admission.signal, database.signal, deps.closing]);
  const closed = recorder.connection(databaseId);
  try {
    onEstablished();
    const ownKey = backendKeyData(server.processId, key.secret);
    client.write(Buffer.concat([server.greeting, ownKey, server.readyForQuery]));
    const { leftBusy } = await deps.relay.splice({
      client,
      clientRest: channel.release(),
      server: server.socket,
      serverRest: server.rest,
      databaseId,
      onQuery: (durationMs, failed, text) => recorder.query(databaseId, durationMs, failed, text),
      signal: ending.signal,
      farewell: () =>
        (admission.signal.aborted
          ? new Refusal('57P01', 'terminating connection: access was revoked')
          : shutdown
        ).toMessage(),
      idleTimeoutMs: deps.idleTimeoutMs,
      idleFarewell: idle.toMessage(),
    });
    // Nobody waits for the answer any more; the server would work on all the same.
    if (leftBusy && !database.signal.aborted) await cancelQuery(database, server).catch(() => {});
  } finally {
    closed();
    ending.dispose();
    key.forget();
  }
}

async function askForSecret(channel: Channel, startup: StartupPacket): Promise<Secret> {
  const { minorVersion, protocolOptions } = startup;
  if (minorVersion > newestMinorVersion || protocolOptions.length > 0)
    channel.socket.write(negotiateProtocolVersion(startup));
  channel.socket.write(cleartextPasswordRequest);
  const { type, body } = await channel.takeMessage(maxPasswordBytes);
  if (type !== 'p') throw new ProtocolViolation('expected password response');
  const secret = parsePassword(body);
  if (secret === '') throw new Refusal('28P01', 'empty password returned by client');
  return new Secret(secret);
}

async function cancel(
  request: { processId: number; secret: Buffer },
  { cancelKeys }: ConnectionDeps,
): Promise<void> {
  const target = cancelKeys.find(request.processId, request.secret);
  if (target) await cancelQuery(target.address, target.server).catch(() => {});
}

function refuse(socket: Socket, error: unknown, logger: Logger): void {
  const refusal = error instanceof ServerRefusal ? undefined : refusalOf(error);
  if (refusal?.sqlState === 'XX000') logger.error({ err: error }, 'a connection failed');
  else if (!(error instanceof PeerGone)) logger.debug({ err: error }, 'connection refused');
  if (error instanceof ServerRefusal) socket.write(error.bytes);
  else if (refusal) socket.write(refusal.toMessage());
  endSoon(socket, refusalMs);
}

/** Aborted by the first of several signals; `dispose` takes its listeners back. */
function firstOf(signals: readonly AbortSignal[]): { signal: AbortSignal; dispose(): void } {
  const controller = new AbortController();
  const abort = () => controller.abort();
  for (const signal of signals) {
    // Many connections share one signal: that is no leak.
    setMaxListeners(0, signal);
    signal.addEventListener('abort', abort, { once: true });
    if (signal.aborted) abort();
  }
  return {
    signal: controller.signal,
    dispose: () => {
      for (const signal of signals) signal.removeEventListener('abort', abort);
    },
  };
}
