// The relay for unencrypted connections on Linux: the sockets' descriptors go to a thread of their
// own (epoll-loop.ts), and Node forgets about them. Encrypted connections take the other relay.
import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import { MessageChannel, Worker } from 'node:worker_threads';
import type { Logger } from '../../kernel/logger.ts';
import type { FromLoop, ToLoop } from './epoll-messages.ts';
import { eventFlags, type Libc, loadLibc } from './libc.ts';
import type { Relay, Splice, SpliceEnd } from './relay.ts';
import { createStreamRelay } from './stream-relay.ts';

interface Running {
  splice: Splice;
  resolve(end: SpliceEnd): void;
}

/** The best relay that this system has. */
export function createRelay(logger: Logger): Relay {
  const streams = createStreamRelay();
  if (process.platform !== 'linux') return streams;
  let libc: Libc;
  try {
    libc = loadLibc();
  } catch (error) {
    logger.warn({ err: error }, 'no system calls for the gateway; connections are slower');
    return streams;
  }
  return createEpollRelay(libc, streams, logger);
}

function createEpollRelay(libc: Libc, streams: Relay, logger: Logger): Relay {
  const running = new Map<number, Running>();
  const one = Buffer.alloc(8);
  one.writeBigUInt64LE(1n);
  let lastId = 0;
  let loop = startLoop();
  let closing = false;

  function startLoop() {
    const wakeFd = libc.eventfd(0, eventFlags);
    const { port1: port, port2 } = new MessageChannel();
    const worker = new Worker(new URL('./epoll-loop.ts', import.meta.url), {
      workerData: { port: port2, wakeFd },
      transferList: [port2],
      name: 'gateway',
    });
    port.on('message', hear);
    port.unref();
    worker.unref();
    const exited = new Promise<void>((done) =>
      worker.once('exit', () => {
        libc.close(wakeFd);
        done();
      }),
    );
    worker.once('error', (error) => {
      logger.error({ err: error }, 'the thread of the gateway died; its connections are lost');
      for (const id of [...running.keys()]) hear({ kind: 'ended', id, leftBusy: true });
      if (!closing) loop = startLoop();
    });
    return { port, wakeFd, exited };
  }

  function tell(message: ToLoop): void {
    loop.port.postMessage(message);
    libc.write(loop.wakeFd, one, 8);
  }

  function hear(message: FromLoop): void {
    if (message.kind === 'ended') {
      const ended = running.get(message.id);
      running.delete(message.id);
      ended?.resolve({ leftBusy: message.leftBusy });
      return;
    }
    message.ids.forEach((id, i) => {
      running
        .get(id)
        ?.splice.onQuery(message.durationsMs[i]!, message.failed[i]!, message.texts[i]);
    });
  }

  return {
    async splice(splice) {
      const { client, server, signal } = splice;
      // Bytes that Node still holds for a slow client would be lost with its socket.
      const isFlushed = client.writableLength === 0 && server.writableLength === 0;
      const isOpen = !client.destroyed && !server.destroyed;
      if (client instanceof TLSSocket || !isFlushed || !isOpen) return streams.splice(splice);
      splice.clientRest = Buffer.concat([splice.clientRest, stopReading(client)]);
      splice.serverRest = Buffer.concat([splice.serverRest, stopReading(server)]);
      const descriptors = takeDescriptors(libc, client, server);
      if (!descriptors) return streams.splice(splice);
      const id = ++lastId;
      const ended = new Promise<SpliceEnd>((resolve) => running.set(id, { splice, resolve }));
      tell({
        kind: 'splice',
        id,
        ...descriptors,
        clientRest: alone(splice.clientRest),
        serverRest: alone(splice.serverRest),
        databaseId: splice.databaseId,
        idleTimeoutMs: splice.idleTimeoutMs,
        idleFarewell: alone(splice.idleFarewell),
      });
      const onAbort = () => tell({ kind: 'end', id, farewell: alone(splice.farewell()) });
      signal.addEventListener('abort', onAbort, { once: true });
      if (signal.aborted) onAbort();
      try {
        return await ended;
      } finally {
        signal.removeEventListener('abort', onAbort);
      }
    },

    async close() {
      closing = true;
      tell({ kind: 'stop' });
      await loop.exited;
    },
  };
}

/** A buffer is a part of a larger one, and a message takes the whole along. */
const alone = (bytes: Buffer) => new Uint8Array(bytes);

/** Node has no documented way to give a descriptor away; these two fields have been there for ever. */
interface Handle {
  fd: number;
  readStop(): number;
}
const handleOf = (socket: Socket) => (socket as unknown as { _handle: Handle })._handle;

/** From here on Node reads nothing more; what it has read is returned. */
function stopReading(socket: Socket): Buffer {
  socket.pause();
  handleOf(socket).readStop();
  const chunks: Buffer[] = [];
  for (let chunk = socket.read(); chunk !== null; chunk = socket.read()) chunks.push(chunk);
  // `read` may have started it again.
  handleOf(socket).readStop();
  return Buffer.concat(chunks);
}

/** Descriptors of the same connections; closing Node's own does not end them. */
function takeDescriptors(libc: Libc, client: Socket, server: Socket) {
  const clientFd = libc.duplicate(handleOf(client).fd);
  const serverFd = libc.duplicate(handleOf(server).fd);
  if (clientFd < 0 || serverFd < 0) {
    // Too many open files: go on with the descriptors that there are.
    for (const fd of [clientFd, serverFd]) if (fd >= 0) libc.close(fd);
    return undefined;
  }
  client.destroy();
  server.destroy();
  return { clientFd, serverFd };
}
