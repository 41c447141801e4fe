// The WebSocket way to the files: takes the upgrades of `/fs/{database_id}` on the HTTP server.
// docs/files.md describes the protocol.
import type { IncomingMessage, Server } from 'node:http';
import type { Duplex } from 'node:stream';
import { WebSocketServer } from 'ws';
import type { Files } from '../../kernel/files.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Logins } from '../../kernel/login.ts';
import { type ConnectionLimits, serveConnection } from './connection.ts';

export interface FilesServerLimits extends ConnectionLimits {
  connectionsPerDatabase: number;
  /** Of all databases, authenticated or not. */
  connections: number;
  /** The largest message a client may send. */
  frameBytes: number;
}

const bytesBeforeAdmission = 65_536;

export interface FilesServer {
  attach(server: Server): void;
  close(): Promise<void>;
}

export function createFilesServer(deps: {
  files: Files;
  logins: Logins;
  logger: Logger;
  limits: FilesServerLimits;
  /** Take client addresses from X-Forwarded-For. */
  trustProxy: boolean;
}): FilesServer {
  const { limits } = deps;
  const perDatabase = new Map<string, number>();
  const webSockets = new WebSocketServer({
    noServer: true,
    clientTracking: true,
    perMessageDeflate: false,
    maxPayload: limits.frameBytes,
  });

  function enter(databaseId: string): (() => void) | undefined {
    const count = perDatabase.get(databaseId) ?? 0;
    if (count >= limits.connectionsPerDatabase) return undefined;
    perDatabase.set(databaseId, count + 1);
    return () => {
      const left = perDatabase.get(databaseId)! - 1;
      if (left > 0) perDatabase.set(databaseId, left);
      else perDatabase.delete(databaseId);
    };
  }

  function onUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    socket.on('error', () => socket.destroy());
    const databaseId = /\/fs\/(db_[a-z0-9]+)\/?(?:\?|$)/.exec(request.url ?? '')?.[1];
    if (databaseId === undefined) refuse(socket, '404 Not Found', 'not found');
    else if (webSockets.clients.size >= limits.connections)
      refuse(socket, '503 Service Unavailable', 'too many connections');
    else {
      const onAdmitted = limitBytes(socket, bytesBeforeAdmission);
      const address = addressOf(request, deps.trustProxy);
      webSockets.handleUpgrade(request, socket, head, (webSocket) =>
        serveConnection(webSocket, { databaseId, address, onAdmitted }, { ...deps, enter }),
      );
    }
  }

  return {
    attach: (server) => void server.on('upgrade', onUpgrade),
    async close() {
      const ended = [...webSockets.clients].map(
        (client) => new Promise<void>((resolve) => client.once('close', () => resolve())),
      );
      for (const client of webSockets.clients) {
        client.close(1001, 'the service stops');
        setTimeout(() => client.terminate(), 1_000).unref();
      }
      await Promise.all(ended);
    },
  };
}

function addressOf({ headers, socket }: IncomingMessage, trustProxy: boolean): string {
  const forwarded = trustProxy ? headers['x-forwarded-for'] : undefined;
  return (
    String(forwarded ?? '')
      .split(',')[0]!
      .trim() ||
    (socket.remoteAddress ?? '')
  );
}

/** Strangers cannot make us keep more than this of what they send. Gives back how to lift it. */
function limitBytes(socket: Duplex, limit: number): () => void {
  let bytes = 0;
  const count = (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes > limit) socket.destroy();
  };
  socket.on('data', count);
  return () => socket.off('data', count);
}

function refuse(socket: Duplex, status: string, message: string): void {
  const body = JSON.stringify({ message });
  socket.end(
    `HTTP/1.1 ${status}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  );
}
