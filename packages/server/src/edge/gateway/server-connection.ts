// The server's side of a connection: opening it as the client's role, and cancelling what it runs.
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { type Channel, createChannel } from './channel.ts';
import { cancelRequest, startupMessage } from './protocol.ts';
import { Refusal } from './refusal.ts';

/** Where a database's server listens while it is held awake. */
export interface ServerAddress {
  readonly socketDirectory: string;
  readonly port: number;
}

export interface OpenServer {
  socket: Socket;
  /** What was read too much. */
  rest: Buffer;
  /** What the client must see of the start; its own key for cancelling comes between the two. */
  greeting: Buffer;
  readyForQuery: Buffer;
  processId: number;
  cancelSecret: Buffer;
}

const connectTimeoutMs = 10_000;
const startTimeoutMs = 60_000;
const maxMessageBytes = 1024 * 1024;

/** The server's own words of refusal, to be passed on as they are. */
export class ServerRefusal extends Error {
  readonly bytes: Buffer;

  constructor(bytes: Buffer) {
    super('the server refused the connection');
    this.name = 'ServerRefusal';
    this.bytes = bytes;
  }
}

/** Connects and waits until the server is ready for queries. */
export async function openServer(
  address: ServerAddress,
  parameters: ReadonlyMap<string, string>,
): Promise<OpenServer> {
  const socket = await dial(address);
  const timer = setTimeout(() => socket.destroy(), startTimeoutMs);
  const channel = createChannel(socket);
  try {
    socket.write(startupMessage(parameters));
    return await readGreeting(channel);
  } catch (error) {
    socket.destroy();
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

async function readGreeting(channel: Channel): Promise<OpenServer> {
  const greeting: Buffer[] = [];
  let processId = 0;
  let cancelSecret: Buffer = Buffer.alloc(4);
  for (;;) {
    const { type, body, whole } = await channel.takeMessage(maxMessageBytes);
    switch (type) {
      case 'R':
        // The socket is open to the service alone, so the server trusts whoever comes through it.
        if (body.readInt32BE(0) !== 0)
          throw new Error('the server asks the gateway to authenticate');
        greeting.push(whole);
        break;
      case 'K':
        processId = body.readInt32BE(0);
        cancelSecret = body.subarray(4);
        break;
      case 'E':
        throw new ServerRefusal(Buffer.concat([...greeting, whole]));
      case 'Z':
        return {
          socket: channel.socket,
          rest: channel.release(),
          greeting: Buffer.concat(greeting),
          readyForQuery: whole,
          processId,
          cancelSecret,
        };
      default:
        greeting.push(whole);
    }
  }
}

/** As Postgres itself wants it: a connection of its own, which the server closes when it is done. */
export async function cancelQuery(
  address: ServerAddress,
  server: Pick<OpenServer, 'processId' | 'cancelSecret'>,
): Promise<void> {
  const socket = await dial(address);
  const timer = setTimeout(() => socket.destroy(), connectTimeoutMs);
  const closed = once(socket, 'close');
  socket.resume();
  socket.write(cancelRequest(server.processId, server.cancelSecret));
  await closed;
  clearTimeout(timer);
}

async function dial({ socketDirectory, port }: ServerAddress): Promise<Socket> {
  const socket = connect(join(socketDirectory, `.s.PGSQL.${port}`));
  // Whatever goes wrong later shows as its closing.
  socket.on('error', () => {});
  const deadline = setTimeout(
    () => socket.destroy(new Error('no connection in time')),
    connectTimeoutMs,
  );
  try {
    await once(socket, 'connect');
    return socket;
  } catch (error) {
    socket.destroy();
    throw new Refusal('57P03', 'the database is not reachable; try again', { cause: error });
  } finally {
    clearTimeout(deadline);
  }
}
