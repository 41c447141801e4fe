// The relay for encrypted connections, whose bytes must pass through Node anyway, and for systems
// without epoll.
import type { Socket } from 'node:net';
import { endSoon } from './channel.ts';
import { QueryMeter } from './query-meter.ts';
import type { Relay, Splice, SpliceEnd } from './relay.ts';

/** How long a client may take to read what is left for it. */
const lastWordsMs = 30_000;

export const createStreamRelay = (): Relay => ({ splice: spliceStreams, close: async () => {} });

function spliceStreams(splice: Splice): Promise<SpliceEnd> {
  const { client, server, signal } = splice;
  const meter = new QueryMeter(splice.onQuery);
  let idleTimer: NodeJS.Timeout | undefined;

  function flow(from: Socket, to: Socket, look: (bytes: Buffer) => void): void {
    from.on('data', (bytes: Buffer) => {
      look(bytes);
      idleTimer?.refresh();
      if (to.write(bytes) || to.destroyed) return;
      from.pause();
      to.once('drain', () => from.resume());
    });
  }
  /** Ends both sides; the client is told why where a message may stand in its stream. */
  function endWith(farewell: Buffer): void {
    server.destroy();
    if (meter.isServerAtBoundary) client.write(farewell);
    endClient();
  }
  const endClient = () => endSoon(client, lastWordsMs);

  return new Promise((resolve) => {
    const onAbort = () => endWith(splice.farewell());
    client.once('close', () => {
      clearTimeout(idleTimer);
      signal.removeEventListener('abort', onAbort);
      // What the client sent before it left (a Terminate, mostly) still reaches the server.
      server.destroySoon();
      resolve({ leftBusy: meter.isBusy && !meter.isTerminated });
    });
    // A client that ends its half has left: nobody asks and then waits with half a connection.
    client.once('end', () => client.destroySoon());
    server.once('close', endClient);
    flow(client, server, (bytes) => meter.fromClient(bytes, bytes.length));
    flow(server, client, (bytes) => meter.fromServer(bytes, bytes.length));
    if (splice.idleTimeoutMs > 0)
      idleTimer = setTimeout(() => {
        if (meter.isBusy) idleTimer?.refresh();
        else endWith(splice.idleFarewell);
      }, splice.idleTimeoutMs);

    if (splice.clientRest.length > 0) client.unshift(splice.clientRest);
    if (splice.serverRest.length > 0) server.unshift(splice.serverRest);
    signal.addEventListener('abort', onAbort, { once: true });
    if (signal.aborted) onAbort();
    else if (server.destroyed) endClient();
    client.resume();
    server.resume();
    // A socket that closed before anybody listened says nothing any more.
    if (client.closed) client.emit('close', false);
  });
}
